"""The second act: windowed counts of the same orders, killed twice in the middle of a batch.

Each customer's orders are counted in windows of event time; a count is written once its window is
closed. What should be there comes from a plain batch query over all orders, so each row that is
there twice is one too many.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka import Message

from spark_eos.demo.performance import KILLS_AFTER, Performance, Script
from spark_eos.demo.theatre import SPARKS_OWN, Contender, Theatre
from spark_eos.verify import Comparison, Verdict, compare

_BATCHES: Final = 5
# About as many windows as this, whatever the number of orders: an order is placed each second.
_WINDOWS: Final = 55


@dataclass(frozen=True)
class CountsOutcome:
    """The result of a contender.

    Attributes:
        comparison: Its target, compared with what the batch query expects.
        open_transactions: Number of its transactions that are still open.
    """

    comparison: Comparison
    open_transactions: int

    @property
    def exactly_once(self) -> bool:
        """Whether each expected row is there once, and nothing else."""
        return self.comparison.verdict is Verdict.SOUND and not self.open_transactions


def play_counts(theatre: Theatre, *contenders: Contender) -> list[CountsOutcome]:
    """Plays the act with each contender and compares the results with the same expectation.

    Args:
        theatre: Where it is played.
        contenders: The contenders.

    Raises:
        DemoError: A query fails or makes no progress.
        LingeringTransactionError: A transaction is still open after the end.
        SparkEosError: The result can't be compared.
    """
    expected = theatre.directory / "expected-counts"
    played = [_play(contender, theatre, expected) for contender in contenders]
    with theatre.stage.waiting("Comparing with a batch query over all orders"):
        return [
            CountsOutcome(
                compare(
                    kafka={"bootstrap.servers": theatre.kafka.bootstrap_servers},
                    outputs=[target],
                    expect=expected,
                ),
                still_open,
            )
            for target, still_open in played
        ]


def _play(contender: Contender, theatre: Theatre, expected: Path) -> tuple[str, int]:
    stage = theatre.stage
    minutes = max(1, theatre.orders // 60 // _WINDOWS)
    script = Script(
        "counts",
        "counts",
        _BATCHES,
        ("--count-minutes", str(minutes)),
        identity=_count_of,
    )
    with Performance(script, contender, theatre) as performance:
        title = f"{performance.title}, counts"
        with stage.scene(f"{title}: started", theatre.orders):
            performance.play_until_killed(KILLS_AFTER[0])
            stage.retitle(f"{title}: started again")
            performance.play_until_killed(KILLS_AFTER[1])
            stage.retitle(f"{title}: started again, to the end")
            # Not from our own sink's query: nothing of it is part of the expectation.
            expects = ("--expected", str(expected)) if contender is SPARKS_OWN else ()
            performance.play_to_the_end(*expects)
        return performance.target, len(performance.open_transactions())


def _count_of(message: Message) -> str:
    return f"{message.key()!r} {message.value()!r}"
