"""Rows at one of which a task waits, in the middle of its transaction."""

from support.flow import Flow


def produce_with_hold(flow: Flow) -> list[str]:
    """500 rows in each of two partitions; in partition 0 the 401st is "hold"."""
    first = [f"a{n}" for n in range(400)] + ["hold"] + [f"b{n}" for n in range(99)]
    second = [f"c{n}" for n in range(500)]
    # Large enough for the rows before the held one to leave all buffers on the way to the sink.
    padding = b"x" * 4_000
    flow.produce(first, partition=0, key=padding)
    flow.produce(second, partition=1, key=padding)
    return sorted(first + second)
