"""The wheel and the sdist: their contents and sizes, and that the wheel is sufficient."""

import email
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from email.message import Message
from pathlib import Path

import pytest

from support.jobs import ROOT

# Bytes: code, and the locks of jars. What goes over it has been packed by mistake.
_LARGEST_WHEEL = 680_000
_LARGEST_SDIST = 540_000

_JOB = "jobs/replay_dead_letters.py"

# Where the package is from, and that its data files came along.
_LOOKS = """
import spark_eos
from spark_eos._jars.lockfile import lock_names
from spark_eos._kafka.protocol import TxnOffsetCommitRequest
spark_eos.ExactlyOnceSink
print(spark_eos.__file__, "kafka-4.4.0" in lock_names(), TxnOffsetCommitRequest.API_KEY, sep="\\n")
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a wheel and an sdist of the project as it is."""
    directory = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(directory)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=240)
    return directory


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def sdist(built: Path) -> Path:
    (found,) = built.glob("*.tar.gz")
    return found


def _package() -> set[str]:
    """All version-controlled files of the package, by path."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "spark_eos"]
    found = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True)
    return {name for name in found.stdout.splitlines() if (ROOT / name).is_file()}


def _names(archive: Path) -> set[str]:
    if archive.suffix == ".whl":
        return set(zipfile.ZipFile(archive).namelist())
    with tarfile.open(archive) as file:
        return {member.name.partition("/")[2] for member in file.getmembers() if member.isfile()}


def test_the_wheel_has_the_package_and_nothing_else(wheel: Path) -> None:
    metadata = {name for name in _names(wheel) if ".dist-info/" in name}
    assert {name.partition("/")[2] for name in metadata} == {
        "METADATA",
        "RECORD",
        "WHEEL",
        "entry_points.txt",
        "licenses/LICENSE",
    }
    # What `spark-eos explain` reads, and the job that `spark-eos dead-letters count` names.
    more = {"spark_eos/errors.md", f"spark_eos/{_JOB}"}
    assert _names(wheel) - metadata == _package() | more
    assert wheel.stat().st_size < _LARGEST_WHEEL


def test_the_sdist_has_what_building_takes_and_nothing_else(sdist: Path) -> None:
    # .gitignore is hatchling's own doing.
    others = {
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "pyproject.toml",
        "PKG-INFO",
        ".gitignore",
    }
    assert _names(sdist) == _package() | others | {"docs/errors.md", _JOB}
    assert sdist.stat().st_size < _LARGEST_SDIST


def test_the_dockerfile_copies_what_the_wheel_includes() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    included = project.partition("wheel.force-include]")[2].partition("\n[")[0]
    names = re.findall(r'^"(.+?)" = ', included, re.MULTILINE)
    dockerfile = (ROOT / "conf/kubernetes/Dockerfile").read_text(encoding="utf-8")
    assert names
    assert [name for name in names if f"COPY {name} " not in dockerfile] == []


def test_the_metadata(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
    metadata: Message = email.message_from_bytes(archive.read(name))
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Author"] == "spark-eos contributors"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload(decode=True) == (ROOT / "README.md").read_bytes()
    # The changelog has an entry for it.
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## \[{re.escape(metadata['Version'])}\] - ", changelog, re.MULTILINE)


@pytest.mark.slow
def test_the_wheel_in_an_environment_of_its_own(wheel: Path, tmp_path: Path) -> None:
    """The package comes from the wheel; its dependencies from this environment."""
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    install = [*pip, "install", "--quiet", "--no-index", "--no-deps", "--no-compile", str(wheel)]
    subprocess.run(install, check=True, timeout=240)
    (ours,) = (path for path in sys.path if path.endswith("site-packages"))
    (own,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    # Python ignores .pth files on PYTHONPATH, such as that of this project's editable install.
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{own}:{ours}"}

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [python, *arguments],
            cwd=tmp_path,
            env=environment,
            check=True,
            capture_output=True,
            text=True,
            timeout=240,
        )
        return done.stdout

    lines = run("-c", _LOOKS).splitlines()
    assert lines == [str(own / "spark_eos" / "__init__.py"), "True", "28"]
    command = tmp_path / "venv" / "bin" / "spark-eos"
    assert "Usage: spark-eos [OPTIONS] COMMAND" in run(str(command), "--help")
    assert "Usage: spark-eos status" in run(str(command), "status", "--help")
    assert "Smaller transactions" in run(str(command), "explain", "EOS54")
