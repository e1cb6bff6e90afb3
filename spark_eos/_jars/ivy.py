"""Downloads jars with Ivy, which every pyspark installation includes."""

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from spark_eos._jars.java import find_java, without_options
from spark_eos._jars.lockfile import LockedJar
from spark_eos.errors import PrintableError

_DOWNLOADED = re.compile(r"\[SUCCESSFUL ]")
_PROBLEM = re.compile(
    r"(?i)error|warn|not found|fail|exception|unresolved|denied|timed? ?out|:: \w"
)
_MAX_PROBLEM_LINES = 25
_ARCHIVE = "archive"
# By default, Ivy waits forever.
_CONNECT_MS = 30_000
_READ_MS = 60_000
# The default root is Maven Central. Skipping the POMs is three times as fast, and the lock already
# contains all of their information.
_SETTINGS = """<ivysettings>
  <settings defaultResolver="maven"/>
  <timeout-constraints>
    <timeout-constraint name="limits" connectionTimeout="{connect}" readTimeout="{read}"/>
  </timeout-constraints>
  <resolvers>
    <ibiblio name="maven" m2compatible="true" usepoms="false" useMavenMetadata="false"
      timeoutConstraint="limits"/>
  </resolvers>
</ivysettings>"""


class DownloadError(PrintableError, RuntimeError):
    """Jars could not be downloaded."""

    entry = "EOS24"


def find_ivy() -> Path:
    """Return the Ivy jar of the installed pyspark."""
    # Find pyspark without importing it, which would take a second.
    spec = PathFinder.find_spec("pyspark", sys.path)
    places = [Path(place) / "jars" for place in (spec and spec.submodule_search_locations) or ()]
    if os.environ.get("SPARK_HOME"):
        places.append(Path(os.environ["SPARK_HOME"]) / "jars")
    for place in places:
        for jar in sorted(place.glob("ivy-*.jar")):
            return jar
    raise DownloadError(
        "Jars are downloaded with pyspark's Ivy, but no installed pyspark was found. "
        "Install it with: pip install pyspark 'pandas>=2.2,<3'"
    )


def download(jars: Sequence[LockedJar], destination: Path, *, work: Path, title: str) -> None:
    """Download `jars` with progress on stderr; the caller verifies their checksums."""
    java = find_java()
    ivy = find_ivy()
    (work / "ivy.xml").write_text(_module(jars), encoding="utf-8")
    limits = {"connect": _CONNECT_MS, "read": _READ_MS}
    (work / "settings.xml").write_text(_SETTINGS.format(**limits), encoding="utf-8")
    command = [
        str(java.executable),
        # Together with JAVA_TOOL_OPTIONS, which may choose a garbage collector or a minimum heap.
        *("-Xms8m", "-Xmx256m", "-XX:TieredStopAtLevel=1"),
        # By default, Ivy would use the user's ~/.ivy2 and ~/.m2.
        f"-Duser.home={work}",
        *("-jar", str(ivy)),
        *("-settings", str(work / "settings.xml"), "-ivy", str(work / "ivy.xml")),
        # OSGi projects call their jar a "bundle".
        *("-confs", "default", "-types", "jar", "bundle", _ARCHIVE),
        *("-retrieve", str(destination / "[artifact]-[revision](-[classifier]).[ext]")),
    ]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None  # noqa: S101  (for the type checker)
        lines = _show(process.stdout, title=title, total=len(jars))
    if process.returncode != 0:
        raise DownloadError(
            f"Downloading {title} failed. Check that this machine can reach Maven Central (set a "
            "proxy with JAVA_TOOL_OPTIONS='-Dhttps.proxyHost=... -Dhttps.proxyPort=...'). "
            "Ivy says:\n" + _reasons(lines)
        )


def _show(output: Iterable[str], *, title: str, total: int) -> list[str]:
    """Show the progress that Ivy's output reports; return the output."""
    lines = []
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(f"Downloading {title}", total=total)
        for line in output:
            lines.append(line.rstrip())
            if _DOWNLOADED.search(line):
                progress.advance(task)
    return lines


def _reasons(lines: Sequence[str]) -> str:
    said = [line.strip() for line in without_options(lines)]
    # A Java that does not start says little, in any words.
    if len(said) > _MAX_PROBLEM_LINES:
        said = [line for line in said if _PROBLEM.search(line)] or said
    return "\n".join(f"  {line}" for line in dict.fromkeys(said[-_MAX_PROBLEM_LINES:]))


def _module(jars: Iterable[LockedJar]) -> str:
    dependencies = "".join(map(_dependency, jars))
    return (
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        '<info organisation="spark-eos" module="jars"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>"
    )


def _dependency(jar: LockedJar) -> str:
    artifact = (
        f'<artifact name="{jar.name}" type="{_ARCHIVE}" ext="{jar.extension}" '
        f'm:classifier="{jar.classifier}"/>'
    )
    return (
        f'<dependency org="{jar.organisation}" name="{jar.name}" rev="{jar.version}" '
        f'conf="default->default" transitive="false">{artifact if jar.is_archive else ""}'
        "</dependency>"
    )
