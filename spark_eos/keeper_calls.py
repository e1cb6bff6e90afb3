"""What Spark's short-lived Python processes ask of the keeper, and what it answers; pickled."""

from dataclasses import dataclass

from spark_eos.plan import BatchPlan
from spark_eos.report import JobOutcome
from spark_eos.settings import WriterSettings


@dataclass(frozen=True)
class Plan:
    """Asks for the plan of the batch that Spark has begun; answered with `Planned`.

    Attributes:
        settings: the writer's settings.
        checkpoint_location: the query's checkpoint.
        members: at most so many group members.
        group_timeout: seconds that calls to the group may take.
    """

    settings: WriterSettings
    checkpoint_location: str
    members: int
    group_timeout: float


@dataclass(frozen=True)
class Planned:
    """A batch's plan.

    Attributes:
        batch_id: Spark's number of the batch.
        query_id: the query that the checkpoint belongs to.
        plan: how to treat each source partition.
    """

    batch_id: int
    query_id: str
    plan: BatchPlan


@dataclass(frozen=True)
class Commit:
    """Tells that a batch's tasks have succeeded; answered with its `BatchReport`.

    Attributes:
        batch_id: Spark's number of the batch.
        query_run: Spark's id of the query's run, or "".
        outcome: what the tasks have reported.
    """

    batch_id: int
    query_run: str
    outcome: JobOutcome


@dataclass(frozen=True)
class Abort:
    """Tells that the query ends; answered with None once the members have left."""
