"""What Spark's short-lived Python processes ask of the keeper, and what it answers.

On the socket each is plain values: of a fixed list of classes, or errors of this package. Who
changes one of them so that an older version can't read it raises the version in
`spark_eos.datasource.keeper_socket`.
"""

import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from spark_eos import errors
from spark_eos.batch.batch_report import BatchReport
from spark_eos.batch.plan import BatchPlan
from spark_eos.batch.task_report import JobOutcome
from spark_eos.batch.writer_settings import WriterSettings
from spark_eos.client.settings import ClientSettings
from spark_eos.datasource.json_values import PlainError, Translator
from spark_eos.errors import SparkEosError


@dataclass(frozen=True)
class Plan:
    """Asks for the plan of the batch that Spark has begun; answered with `Planned`.

    Attributes:
        settings: the writer's settings.
        checkpoint_location: the query's checkpoint.
        max_members: maximum number of group members.
        group_timeout_ms: milliseconds that each call to the group may take.
    """

    settings: WriterSettings
    checkpoint_location: str
    max_members: int
    group_timeout_ms: int


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
    """Tells that the query ends; answered with `Ended`."""


@dataclass(frozen=True)
class Ended:
    """The members have left."""


Message = Plan | Planned | Commit | BatchReport | Abort | Ended

_MESSAGES: Final[Mapping[str, type]] = {kind.__name__: kind for kind in typing.get_args(Message)}
_ERRORS: Final[Mapping[str, type[SparkEosError]]] = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, SparkEosError)
}
_PLAIN: Final = Translator({ClientSettings: (ClientSettings.plain, ClientSettings)})


def to_plain(message: Message | SparkEosError) -> dict[str, Any]:
    """A message or an error as plain values; secrets among them, for this user's processes only.

    Raises:
        PlainError: a field is not of its type.
        ConfigurationError: the client settings have a function.
    """
    if isinstance(message, SparkEosError):
        name, arguments = _told(message)
        kinds = _arguments(_ERRORS[name])
        values = [_PLAIN.to_plain(*pair) for pair in zip(arguments, kinds, strict=True)]
        return {"error": name, "arguments": values}
    name = type(message).__name__
    return {"message": name, "fields": _PLAIN.to_plain(message, _MESSAGES[name])}


def from_plain(document: object) -> Message | SparkEosError:
    """The inverse.

    Raises:
        PlainError: it is neither.
        ConfigurationError: client settings can't be used.
    """
    match document:
        case {"error": str(name), "arguments": list(values)} if name in _ERRORS:
            kinds = _arguments(_ERRORS[name])
            if len(kinds) != len(values):
                raise PlainError(f"no {name}")
            pairs = zip(values, kinds, strict=True)
            return _ERRORS[name](*(_PLAIN.from_plain(*pair) for pair in pairs))
        case {"message": str(name), "fields": fields} if name in _MESSAGES:
            message: Message = _PLAIN.from_plain(fields, _MESSAGES[name])
            return message
    raise PlainError("no message of a keeper")


def _told(error: SparkEosError) -> tuple[str, tuple[Any, ...]]:
    """The name of an error's class, and what it is made of."""
    name = type(error).__name__
    if _ERRORS.get(name) is not type(error):
        return SparkEosError.__name__, (str(error),)
    arguments = error.__reduce__()[1]
    if not isinstance(arguments, tuple) or len(arguments) != len(_arguments(type(error))):
        return SparkEosError.__name__, (str(error),)
    return name, arguments


def _arguments(kind: type[SparkEosError]) -> list[Any]:
    """The types of what an error is made of: a text, unless it says otherwise."""
    if not isinstance(kind.__init__, types.FunctionType):  # one of Python's own
        return [str]
    hints = typing.get_type_hints(kind.__init__)
    return [hint for name, hint in hints.items() if name != "return"]
