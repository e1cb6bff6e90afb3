"""A real S3 server, and the settings with which Spark keeps checkpoints in it."""

import re
import shutil
import urllib.request
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest
from pyarrow import fs

from spark_eos.testing.broker_properties import free_numbers
from support.hadoop import hadoop_jars
from support.killable_process import KillableProcess
from support.pages import code_blocks
from support.queries import until
from support.service import Service

_LOCK: Final = "hadoop-aws-3.5.0"
_HOST: Final = "127.0.0.1"
_SERVERS: Final = ("master", "volume", "filer", "s3")
_BUCKET: Final = "checkpoints"
_ENDPOINT: Final = "AWS_ENDPOINT_URL"
# The server, S3A and pyarrow read the credentials from these environment variables.
_IDENTITY: Final = {
    "AWS_ACCESS_KEY_ID": "spark-eos",
    "AWS_SECRET_ACCESS_KEY": "known-to-all-tests",
    "AWS_REGION": "us-east-1",
}
_COUNTED: Final = re.compile(r"^SeaweedFS_s3_request_total\{(.*)\} (\d+)$", re.MULTILINE)
_SECONDS: Final = re.compile(r"^SeaweedFS_s3_request_seconds_sum\{.*\} (\S+)$", re.MULTILINE)


def documented_settings() -> dict[str, str]:
    """The S3A settings in docs/deploying.md."""
    (block,) = (code for code in code_blocks("deploying", "text") if "fs.s3a" in code)
    return dict(line.split(maxsplit=1) for line in block.replace("\\\n", " ").splitlines())


class ObjectStore(Service):
    """SeaweedFS on the loopback address. About 120 MB."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        program = shutil.which("weed")
        if program is None:
            pytest.skip("there is no `weed`: make test-stores installs it")
        self._jars = hadoop_jars(_LOCK)
        names = [f"{name}.port{kind}" for name in _SERVERS for kind in ("", ".grpc")]
        *ports, metrics = free_numbers(len(names) + 1)
        chosen = dict(zip(names, ports, strict=True))
        self._endpoint = f"http://{_HOST}:{chosen['s3.port']}"
        self._metrics = f"http://{_HOST}:{metrics}/metrics"
        self._process = KillableProcess(
            [
                *(program, "server", "-s3", "-filer", f"-ip={_HOST}", f"-ip.bind={_HOST}"),
                *(f"-{name}={port}" for name, port in chosen.items()),
                *("-s3.port.iceberg=0", "-s3.port.lance=0", f"-metricsPort={metrics}"),
                *("-master.telemetry=false", "-master.volumeSizeLimitMB=64", "-volume.max=50"),
                # Accept data however full this machine's disk is.
                *(f"-dir={directory}", "-volume.minFreeSpace=1"),
                # Otherwise, it would be below /tmp, whatever TMPDIR says.
                f"-filer.localSocket={directory / 'filer.sock'}",
                f"-s3.localSocket={directory / 's3.sock'}",
            ],
            log=directory / "server.log",
            directory=directory,
            environment=self.environment,
        )

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables with the server's address and the credentials."""
        return {_ENDPOINT: self._endpoint, **_IDENTITY}

    @property
    def settings(self) -> dict[str, str]:
        """A session's settings for the server."""
        return {
            "spark.jars": ",".join(map(str, self._jars)),
            "spark.hadoop.fs.s3a.endpoint": self._endpoint,
            "spark.hadoop.fs.s3a.path.style.access": "true",
            **documented_settings(),
        }

    @property
    def location(self) -> str:
        """URI of the bucket, without a trailing slash."""
        return f"s3a://{_BUCKET}"

    def _begin(self) -> None:
        self._stack.enter_context(self._process)
        until(self._created, self._process.log_tail, 60)

    def _created(self) -> bool:
        """Creates the bucket once the server accepts requests."""
        with suppress(OSError):
            store = fs.S3FileSystem(
                access_key=_IDENTITY["AWS_ACCESS_KEY_ID"],
                secret_key=_IDENTITY["AWS_SECRET_ACCESS_KEY"],
                region=_IDENTITY["AWS_REGION"],
                endpoint_override=self._endpoint,
                allow_bucket_creation=True,
            )
            store.create_dir(_BUCKET)
            with store.open_output_stream(f"{_BUCKET}/ready") as stream:
                stream.write(b"ready")
            return True
        return False

    def requests(self) -> Counter[str]:
        """The number of requests that the server has answered, by kind."""
        found: Counter[str] = Counter()
        for labels, number in _COUNTED.findall(self._metrics_text()):
            kind = re.search(r'type="(\w+)"', labels)
            assert kind is not None
            found[kind[1]] += int(number)
        return found

    def seconds(self) -> float:
        """The total time that the server has spent on requests."""
        return sum(map(float, _SECONDS.findall(self._metrics_text())))

    def _metrics_text(self) -> str:
        with urllib.request.urlopen(self._metrics, timeout=30) as answer:  # noqa: S310 - http
            return str(answer.read().decode())
