"""What Spark's short-lived Python processes ask the keeper, and what it answers.

On the socket, each message is plain values of a class from a fixed list, or of an error of this
package. A change that older versions can't read needs a new version number in
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
        settings: The writer's settings.
        checkpoint_location: The query's checkpoint.
        max_members: Maximum number of group members.
        group_timeout_ms: Milliseconds allowed for each call to the group.
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
        query_id: The query that the checkpoint belongs to.
        plan: How to treat each source partition.
    """

    batch_id: int
    query_id: str
    plan: BatchPlan


@dataclass(frozen=True)
class Commit:
    """Reports that a batch's tasks have succeeded; answered with its `BatchReport`.

    Attributes:
        batch_id: Spark's number of the batch.
        query_run: Spark's id of the query's run, or "".
        outcome: What the tasks reported.
    """

    batch_id: int
    query_run: str
    outcome: JobOutcome


@dataclass(frozen=True)
class Abort:
    """Reports that the query ends; answered with `Ended`."""


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
    """A message or an error as plain values, which may hold secrets: for this user's processes.

    Raises:
        PlainError: A field has the wrong type.
        ConfigurationError: The client settings hold a function.
    """
    if isinstance(message, SparkEosError):
        name, arguments = _name_and_arguments(message)
        kinds = _arguments(_ERRORS[name])
        values = [_PLAIN.to_plain(*pair) for pair in zip(arguments, kinds, strict=True)]
        return {"error": name, "arguments": values}
    name = type(message).__name__
    return {"message": name, "fields": _PLAIN.to_plain(message, _MESSAGES[name])}


def from_plain(document: object) -> Message | SparkEosError:
    """The inverse of `to_plain`.

    Raises:
        PlainError: The document is neither a message nor an error.
        ConfigurationError: The client settings can't be used.
    """
    match document:
        case {"error": str(name), "arguments": list(values)} if name in _ERRORS:
            kinds = _arguments(_ERRORS[name])
            if len(kinds) != len(values):
                raise PlainError(f"not a {name}: {len(values)} arguments instead of {len(kinds)}")
            pairs = zip(values, kinds, strict=True)
            return _ERRORS[name](*(_PLAIN.from_plain(*pair) for pair in pairs))
        case {"message": str(name), "fields": fields} if name in _MESSAGES:
            message: Message = _PLAIN.from_plain(fields, _MESSAGES[name])
            return message
    raise PlainError("not a keeper's message")


def _name_and_arguments(error: SparkEosError) -> tuple[str, tuple[Any, ...]]:
    """The name of an error's class, and the arguments that make an equal error."""
    name = type(error).__name__
    if _ERRORS.get(name) is not type(error):
        return SparkEosError.__name__, (str(error),)
    arguments = error.__reduce__()[1]
    if not isinstance(arguments, tuple) or len(arguments) != len(_arguments(type(error))):
        return SparkEosError.__name__, (str(error),)
    return name, arguments


def _arguments(kind: type[SparkEosError]) -> list[Any]:
    """The types of an error's arguments: one text, unless its class defines others."""
    if not isinstance(kind.__init__, types.FunctionType):  # inherited from Python's Exception
        return [str]
    hints = typing.get_type_hints(kind.__init__)
    return [hint for name, hint in hints.items() if name != "return"]
