"""Counts the requests that a batch sends to brokers, using a proxy in front of them."""

import uuid
from collections import Counter
from pathlib import Path

from contestants import BATCHES, EQUAL, OURS, Arena
from kafka.protocol.api_key import ApiKey
from load import fill
from pyspark.sql import SparkSession
from results import Measured
from scenarios import SPARE, Records

from spark_eos.testing import EmbeddedKafka
from support.proxy import KafkaProxy

_ROWS = 10_000
_BATCHES = 12
_RECORDS = Records(100, 4)


def requests_per_batch(spark: SparkSession, directory: Path) -> Measured:
    """Count all clients' requests per batch, including the query's start and end.

    Args:
        spark: The session.
        directory: Directory for checkpoints.
    """
    measured = Measured(f"requests, {_ROWS:,} rows, {_RECORDS.name}", "requests per batch")
    with KafkaProxy() as proxy, EmbeddedKafka(advertised_port=proxy.port) as broker:
        proxy.connect(broker)
        source = f"requests-{uuid.uuid4().hex[:8]}"
        broker.create_topic(source, _RECORDS.partitions)
        fill(broker, source, _ROWS * _BATCHES + SPARE * _RECORDS.partitions, _RECORDS)
        for name in (EQUAL, OURS):
            target = f"requests-{uuid.uuid4().hex[:8]}"
            broker.create_topic(target, _RECORDS.partitions)
            before = len(proxy.requests)
            BATCHES[name](
                Arena(
                    spark,
                    proxy.bootstrap_servers,
                    source,
                    target,
                    directory,
                    header=False,
                    most=_ROWS,
                    batches=_BATCHES,
                )
            )
            found = Counter(ApiKey(r.api_key).name for r in proxy.requests[before:])
            measured.add(name, sum(found.values()) / _BATCHES)
            measured.details[name] = {api: n / _BATCHES for api, n in found.most_common()}
    return measured
