"""Starts a broker's JVM and waits until it serves requests."""

import time
from collections.abc import Sequence

from confluent_kafka.admin import AdminClient

from spark_eos.testing.broker_admin import admin_client, answers
from spark_eos.testing.broker_image import BrokerStartError
from spark_eos.testing.broker_process import BrokerProcess
from spark_eos.testing.broker_remains import Remains

_STARTED = "Kafka Server started"
_LOG_TAIL_LINES = 40


def launch(
    remains: Remains, command: Sequence[str], address: str, start_timeout: float
) -> AdminClient:
    """Start a broker and wait until it serves requests.

    Args:
        remains: Holds the broker's directory; the process is noted there before the wait, so that
            it is removed however the wait ends.
        command: The JVM's command line.
        address: Plaintext address at which the broker must answer.
        start_timeout: Seconds within which it must answer.

    Returns:
        A client for administration.

    Raises:
        BrokerStartError: The broker ended or did not answer in time; the JVM has been killed, and
            the message ends with its log.
    """
    if remains.directory is None:
        raise RuntimeError("The broker was closed")
    deadline = time.monotonic() + start_timeout
    logged_before = len(remains.log())
    process = BrokerProcess(
        command, directory=remains.directory, log=remains.directory / "broker.log"
    )
    remains.process = process
    admin = admin_client(address)
    while not (_STARTED in remains.log()[logged_before:] and answers(admin)):
        code = process.exit_code()
        if code is None and time.monotonic() < deadline:
            time.sleep(0.02)
            continue
        process.kill()
        reason = (
            f"did not answer within {start_timeout:g} s (start_timeout)"
            if code is None
            else f"ended with exit code {code}"
        )
        tail = "\n".join(remains.log().splitlines()[-_LOG_TAIL_LINES:])
        raise BrokerStartError(f"Kafka {reason}. The end of its log:\n{tail}")
    return admin
