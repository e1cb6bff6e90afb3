"""Random orders in JSON, each with a unique id."""

import json
import random
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Final

from confluent_kafka import Producer

_COUNTRIES: Final = {
    "AT": "EUR",
    "CH": "CHF",
    "DE": "EUR",
    "ES": "EUR",
    "FR": "EUR",
    "GB": "GBP",
    "IT": "EUR",
    "PL": "PLN",
    "SE": "SEK",
    "US": "USD",
}
_STATUSES: Final = ("placed", "paid", "shipped", "cancelled")
_STATUS_WEIGHTS: Final = (30, 45, 20, 5)
_FIRST_DAY: Final = datetime(2026, 11, 1, tzinfo=timezone.utc)
_CUSTOMERS: Final = 5_000
_AT_ONCE: Final = 5_000


def make_orders(count: int, seed: int) -> Iterator[tuple[bytes, bytes]]:
    """Yields keys (customers' ids) and values (JSON); the same seed gives the same orders."""
    chance = random.Random(seed)  # noqa: S311 - orders, not secrets
    ordered_at = _FIRST_DAY
    countries = list(_COUNTRIES)
    for number in range(count):
        ordered_at += timedelta(milliseconds=chance.randrange(2_000))
        customer = f"c-{chance.randrange(_CUSTOMERS):05d}"
        country = chance.choice(countries)
        order = {
            "order_id": f"o-{number:08d}",
            "customer_id": customer,
            "country": country,
            "currency": _COUNTRIES[country],
            "items": [
                {
                    "sku": f"s-{chance.randrange(10_000):04d}",
                    "quantity": chance.randint(1, 4),
                    "unit_price": chance.randrange(99, 40_000) / 100,
                }
                for _ in range(chance.randint(1, 3))
            ],
            "status": chance.choices(_STATUSES, _STATUS_WEIGHTS)[0],
            "ordered_at": ordered_at.isoformat(timespec="milliseconds"),
        }
        yield customer.encode(), json.dumps(order, separators=(",", ":")).encode()


def produce_orders(
    bootstrap_servers: str,
    topic: str,
    count: int,
    seed: int,
    written: Callable[[int], None] = lambda _: None,
) -> None:
    """Writes orders to a topic, partitioned by customer; calls ``written`` with their number.

    Raises:
        RuntimeError: The cluster did not accept all orders.
    """
    settings = {"linger.ms": 20, "partitioner": "murmur2_random", "log_level": 0}
    producer = Producer({"bootstrap.servers": bootstrap_servers, **settings})
    for number, (key, value) in enumerate(make_orders(count, seed), 1):
        producer.produce(topic, value, key)
        if number % _AT_ONCE == 0 or number == count:
            if left := producer.flush(60):
                raise RuntimeError(f"{left} orders could not be written to {topic}")
            written(number)
