"""Requirements for a release; and no page promises a release before it exists."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from support.jobs import ROOT

_FROM_INDEX = re.compile(r"""pip install (?:-\S+ )*['"]?spark[-_]eos\b""")


def _workflow(name: str = "release") -> dict[str, Any]:
    text = (ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def test_only_the_job_that_publishes_may_sign() -> None:
    workflow = _workflow()
    assert workflow["permissions"] == {}
    jobs = workflow["jobs"]
    assert jobs["build"]["permissions"] == {"contents": "read"}
    assert jobs["publish"]["permissions"] == {"id-token": "write", "attestations": "write"}
    assert jobs["publish"]["environment"]["name"] == "pypi"
    assert jobs["publish"]["needs"] == "build"


def test_a_release_is_checked_as_its_page_says() -> None:
    build = _workflow()["jobs"]["build"]["steps"]
    commands = "\n".join(step.get("run", "") for step in build)
    page = (ROOT / "MAINTAINING.md").read_text(encoding="utf-8")
    for command in (
        "python -m build",
        "twine check --strict dist/*",
        "check-wheel-contents dist/*.whl",
        "pip install build twine check-wheel-contents",
    ):
        assert command in commands
        assert command in page


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib")
def test_the_tag_is_compared_with_the_version() -> None:
    steps = _workflow()["jobs"]["build"]["steps"]
    (script,) = (step["run"] for step in steps if "GITHUB_REF_NAME" in step.get("run", ""))
    (code,) = re.findall(r"python -c '([^']+)'", script)
    version = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True)
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", version)


def test_nothing_says_that_the_package_is_on_the_index() -> None:
    """To be removed with the first release."""
    files = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("spark_eos/**/*.py")]
    files += [*ROOT.glob("notebooks/*"), *ROOT.glob("jobs/*.py")]
    assert [path for path in files if _says(path)] == []
    assert _FROM_INDEX.search("pip install 'spark-eos[spark]'")


def _says(path: Path) -> bool:
    return path.is_file() and bool(_FROM_INDEX.search(path.read_text(encoding="utf-8")))


def test_the_versions_that_are_promised_are_tested() -> None:
    runs = _workflow("ci")["jobs"]["test"]["strategy"]["matrix"]["include"]
    versions = {name: {run[name] for run in runs} for name in ("python", "spark", "kafka")}
    pins = (
        path.stem.removeprefix("constraints-spark-") for path in ROOT.glob("constraints-s*.txt")
    )
    # Without one, the version that constraints.txt has.
    assert versions["spark"] == {"", *pins}
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert versions["python"] == {*re.findall(r"Python :: (3\.\d+)", text)}
    locks = (ROOT / "spark_eos" / "_jars" / "locks").glob("kafka-*.json")
    assert versions["kafka"] == {path.stem.removeprefix("kafka-") for path in locks}
