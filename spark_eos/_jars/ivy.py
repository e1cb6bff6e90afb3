"""Downloads jars with Ivy, which every pyspark installation includes."""

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from xml.etree import ElementTree as ET

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from spark_eos._jars.java import find_java
from spark_eos._jars.lockfile import LockedJar
from spark_eos.errors import PrintableError

_DOWNLOADED = re.compile(r"\[SUCCESSFUL ]")
_PROBLEM = re.compile(
    r"(?i)error|warn|not found|fail|exception|unresolved|denied|timed? ?out|:: \w"
)
_MAX_PROBLEM_LINES = 25
_ARCHIVE = "archive"
_MAVEN = "http://ant.apache.org/ivy/maven"


class DownloadError(PrintableError, RuntimeError):
    """Jars could not be downloaded."""

    entry = "EOS24"


def find_ivy() -> Path:
    """Return the Ivy jar of the installed pyspark."""
    # Without importing pyspark, which would take a second.
    spec = PathFinder.find_spec("pyspark", sys.path)
    places = [Path(place) / "jars" for place in (spec and spec.submodule_search_locations) or ()]
    if os.environ.get("SPARK_HOME"):
        places.append(Path(os.environ["SPARK_HOME"]) / "jars")
    for place in places:
        for jar in sorted(place.glob("ivy-*.jar")):
            return jar
    raise DownloadError(
        "Jars are downloaded with the Ivy of pyspark, but no installed pyspark was found. "
        "Install it with: pip install pyspark 'pandas>=2.2,<3'"
    )


def download(jars: Sequence[LockedJar], destination: Path, *, work: Path, title: str) -> None:
    """Download `jars` with progress on stderr; the caller checks their sums."""
    java = find_java()
    ivy = find_ivy()
    _write_module(work / "ivy.xml", jars)
    _write_settings(work / "settings.xml", work / "cache")
    command = [
        str(java.executable),
        *("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
        # Otherwise Ivy would look into the user's ~/.ivy2 and ~/.m2.
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
    """Show progress according to Ivy's output; return the output."""
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
    wanted = [line.strip() for line in lines if _PROBLEM.search(line)] or list(lines)
    return "\n".join(f"  {line}" for line in dict.fromkeys(wanted[-_MAX_PROBLEM_LINES:]))


def _write_module(path: Path, jars: Iterable[LockedJar]) -> None:
    module = ET.Element("ivy-module", {"version": "2.0", "xmlns:m": _MAVEN})
    ET.SubElement(module, "info", organisation="spark-eos", module="jars")
    configurations = ET.SubElement(module, "configurations")
    ET.SubElement(configurations, "conf", name="default")
    dependencies = ET.SubElement(module, "dependencies")
    for jar in jars:
        dependency = ET.SubElement(
            dependencies,
            "dependency",
            org=jar.organisation,
            name=jar.name,
            rev=jar.version,
            conf="default->default",
            transitive="false",
        )
        if jar.is_archive:
            chosen = {"name": jar.name, "type": _ARCHIVE, "ext": jar.extension}
            ET.SubElement(dependency, "artifact", {**chosen, "m:classifier": jar.classifier})
    ET.ElementTree(module).write(path, encoding="utf-8", xml_declaration=True)


def _write_settings(path: Path, cache: Path) -> None:
    settings = ET.Element("ivysettings")
    ET.SubElement(settings, "settings", defaultResolver="maven")
    ET.SubElement(settings, "caches", defaultCacheDir=str(cache))
    resolvers = ET.SubElement(settings, "resolvers")
    # The resolver's default root is Maven Central. The lock holds everything a pom would, and not
    # reading poms is three times as fast.
    ET.SubElement(
        resolvers,
        "ibiblio",
        name="maven",
        m2compatible="true",
        usepoms="false",
        useMavenMetadata="false",
    )
    ET.ElementTree(settings).write(path, encoding="utf-8", xml_declaration=True)
