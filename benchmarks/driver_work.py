"""Measures CPU time and bytes of the driver's work on source partitions, without brokers or Spark.

PYTHONPATH=tests .venv/bin/python benchmarks/driver_work.py
"""

import math
import time
from collections.abc import Callable

import click
from rich.console import Console

from support.driver_work import DRIVER_BYTES, DRIVER_WORK, ManyPartitions

_SIZES = (100, 1_000, 10_000)


def _milliseconds(work: Callable[[], object]) -> float:
    """Return the lowest CPU time of five calls, since the machine does other work too."""
    found = []
    for _ in range(5):
        began = time.process_time()
        work()
        found.append((time.process_time() - began) * 1000)
    return min(found)


@click.command()
def main() -> None:
    """Print a Markdown table of times and their growth, with three partitions per topic."""
    queries = [ManyPartitions.of(size) for size in _SIZES]
    print_line = Console(highlight=False, soft_wrap=True).print
    print_line(f"| CPU ms, by partitions | {' | '.join(f'{n:,}' for n in _SIZES)} | growth |")
    print_line("| --- | ---: | ---: | ---: | ---: |")
    for name, work in DRIVER_WORK.items():
        spent = [_milliseconds(work(query)) for query in queries]
        growth = math.log(spent[-1] / spent[-2]) / math.log(_SIZES[-1] / _SIZES[-2])
        cells = " | ".join(f"{one:,.0f}" if one >= 10 else f"{one:.2g}" for one in spent)
        print_line(f"| {name} | {cells} | {growth:.1f} |")
    for name, size in DRIVER_BYTES.items():
        cells = " | ".join(f"{size(query):,}" for query in queries)
        print_line(f"| {name}, bytes | {cells} | |")


if __name__ == "__main__":
    main()
