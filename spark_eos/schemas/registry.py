"""`SchemaRegistry`: decodes and encodes columns of a DataFrame with the schemas of a registry."""

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from spark_eos._checkpoint.marker import Files
from spark_eos._client.argument_types import typed
from spark_eos._pyspark_internals import is_connect
from spark_eos._spark.columns import SOURCE, header_type_fits
from spark_eos._spark.final_steps import with_step
from spark_eos._spark.names import known_name, with_known_names
from spark_eos._spark.narrow_plan import with_own_topic_marked
from spark_eos._spark.row_errors import RowErrors
from spark_eos._spark.spark_files import HadoopFiles, SparkFiles
from spark_eos._worker.dead_letters import ERROR
from spark_eos.errors import CheckpointError, ConfigurationError, SchemaError, warn
from spark_eos.schemas.client import Client, Registered, context_of
from spark_eos.schemas.formats import Schema, format_of
from spark_eos.schemas.framing import header_of, prefix_of
from spark_eos.schemas.pins import DECODE, ENCODE, Pins
from spark_eos.schemas.rows import HEADERS, Decoding, Encoding, Member, Target

_LATEST: Final = "latest"
_FRAMINGS: Final = ("prefix", "header")

logger = logging.getLogger(__name__)


class SchemaRegistry:
    """Reads and writes records as columns, with the schemas of a schema registry.

    Works on any DataFrame, streaming or not, on classic Spark and Spark Connect. Rows stay in their
    partitions and in order, so `ExactlyOnceSink` can write such a query with direct delivery.

    Args:
        settings: Settings by their names in ``confluent_kafka.schema_registry``: ``url``,
            ``basic.auth.user.info``, ``bearer.auth.*``, ``ssl.*`` and others. Files must also be on
            Spark's executors.
        max_wait: Seconds to wait for a registry that does not answer, before the query fails.

    Raises:
        ConfigurationError: A setting is unknown or can't be used, or ``spark-eos[schemas]`` is not
            installed.

    Examples:
        ::

            registry = SchemaRegistry({"url": "http://localhost:8081"})
            read = sink.read(spark, subscribe="orders")
            orders = registry.decode(read, "value", subject="orders-value")
            # A struct of nulls would not be a tombstone.
            price = F.when(F.col("value").isNotNull(), F.struct("value.id", "value.cents"))
            prices = orders.select("source", "key", price.alias("value"))
            rows = registry.encode(prices, "value", subject="orders-prices-value")
            query = sink.write(rows).start()
    """

    @typed
    def __init__(self, settings: Mapping[str, Any], *, max_wait: float = 60.0) -> None:
        self._client = Client(settings, max_wait)

    def __repr__(self) -> str:
        return f"SchemaRegistry({self._client.url!r})"

    @typed
    def decode(
        self,
        frame: DataFrame,
        column: str = "value",
        *,
        subject: str | Mapping[str, str] | None = None,
        schema: str | Mapping[str, str] | None = None,
        version: int | str | None = None,
        kind: str = "AVRO",
        message: str | Mapping[str, str] | None = None,
        pinned: str | None = None,
        errors: str | None = None,
    ) -> DataFrame:
        """Replace a binary column with the decoded contents of its records.

        Each record is read with its writer's schema, whose id precedes the payload or is in a
        header (if the frame has ``headers``). The record is then resolved to the reader's schema by
        the format's own rules. Nulls (tombstones) stay null.

        Args:
            frame: The rows.
            column: ``value``, ``key`` or another binary column.
            subject: The subject of the reader's schema, including its context if it has one, such
                as ``:.staging:orders-value``. For several subjects, give a dict with a name for
                each: the column becomes a struct with a member for each name. A record goes to the
                member whose schema has the record's name; the other members are null.
            schema: The text of the reader's schema, instead of the subject's; a dict by name if
                there are several. If ``subject`` is given too, ids are looked up in its context.
            version: The subject's version: a number, or ``latest``. By default, the pinned version
                or, without one, the latest. This call fixes the version: a running query's columns
                do not change.
            kind: The format of ``schema``: ``AVRO``, ``PROTOBUF`` or ``JSON``.
            message: The full name of the Protobuf message, by default the schema's first; a dict by
                name if there are several subjects.
            pinned: A directory that keeps the versions, so that the columns are the same after a
                restart; preferably the query's checkpoint location. `encode` keeps its own
                versions there. ``version`` replaces a pinned version.
            errors: How to handle a record that can't be read. By default, a direct or mirrored
                query with ``dead_letters`` turns it into a dead letter: the record becomes null,
                and the row's ``source`` carries the error. Any other query fails. ``raise``: every
                query fails. ``column``: the record becomes null, and the row gets a column
                ``error``, struct<message, exception, stacktrace>, for you to handle. If the sink
                finds this column, it writes a dead letter. A row keeps its first error.

        Returns:
            The same columns, with ``column`` decoded, and with ``error`` if that was requested in
            this call or an earlier one.

        Raises:
            SchemaError: There is no such subject or version, or Spark has no type for a field.
            RegistryError: The registry can't be reached, or refuses the request. Tasks raise it
                too; a record is never the cause.
            CheckpointError: The ``pinned`` version can't be read, or is from another registry.
            ConfigurationError: An argument can't be used.

        Examples:
            ::

                events = registry.decode(
                    frame, subject={"order": "events-shop.Order", "refund": "events-shop.Refund"}
                )
                refunds = events.where("value.refund is not null")
        """
        frame = with_known_names(frame, (SOURCE, HEADERS, ERROR))
        column = known_name(frame, column)
        _check_column(frame, column)
        of_rows = RowErrors.of(frame.schema, errors, SchemaError)
        if not isinstance(frame.schema[column].dataType, T.BinaryType | T.StringType):
            raise ConfigurationError(
                f"`{column}` is {frame.schema[column].dataType.simpleString()}; only a binary "
                "column can be decoded"
            )
        members, used = list[Member](), list[Registered]()
        named = _named(subject, schema)
        _check_names(message, [name for name, *_ in named])
        _check_version_used(named, version, pinned)
        scope = _scope({own for _, own, _ in named if own is not None})
        for name, own, given in named:
            if given is not None:
                chosen = Schema(kind, given)
            elif own is not None:
                used.append(self._chosen(frame, own, version, pinned, DECODE))
                chosen = used[-1].schema
            else:
                raise ConfigurationError("decode needs subject=, or the reader's schema=")
            members.append(_member(name, chosen, message))
        _check_told_apart(members)
        types = [format_of(member.schema).kind.spark for member in members]
        frame = with_own_topic_marked(frame)
        made = T.StructField(column, _column_type(members, types))
        decoding = Decoding(self._client, made, members, scope, of_rows)
        decoded = frame.mapInArrow(decoding, decoding.schema(frame.schema))
        _pin(frame, used, pinned, DECODE)
        return decoded

    @typed
    def encode(
        self,
        frame: DataFrame,
        column: str = "value",
        *,
        subject: str | Mapping[str, str],
        schema: str | Mapping[str, str] | None = None,
        version: int | str | None = None,
        kind: str = "AVRO",
        message: str | Mapping[str, str] | None = None,
        register: bool = False,
        framing: str = "prefix",
        pinned: str | None = None,
        errors: str | None = None,
    ) -> DataFrame:
        """Replace a column with binary records of a subject's schema, including the schema's id.

        The column has the schema's fields, in any order; fields with a default may be missing.
        A null stays null, which makes a tombstone.

        Args:
            frame: The rows.
            column: ``value``, ``key`` or another column.
            subject: The subject. For several subjects, give a dict with a name for each: the column
                is a struct with members of these names, of which exactly one is set in each row.
            schema: The text of the schema, which the subject must have unless ``register`` is set;
                by default the schema of ``version``.
            version: As in `decode`.
            kind: As in `decode`.
            message: As in `decode`.
            register: Whether to register ``schema``. By default, nothing is ever registered.
            framing: ``prefix``: the id precedes each record. ``header``: a header has the schema's
                GUID; the column ``headers`` is added if it is missing.
            pinned: As in `decode`.
            errors: As in `decode`, for a row that does not fit the schema, such as a null where the
                schema allows none.

        Returns:
            The same columns, with ``column`` encoded, and with ``error`` as in `decode`.

        Raises:
            SchemaError: There is no such subject, version or schema; the subject refuses the
                schema; or the column's type does not fit the schema.
            RegistryError: The registry can't be reached, or refuses the request.
            CheckpointError: As in `decode`.
            ConfigurationError: An argument can't be used.

        Examples:
            ::

                rows = registry.encode(prices, "value", subject="prices-value", framing="header")
        """
        frame = with_known_names(frame, (SOURCE, HEADERS, ERROR))
        column = known_name(frame, column)
        _check_column(frame, column)
        of_rows = RowErrors.of(frame.schema, errors, SchemaError)
        if framing not in _FRAMINGS:
            raise ConfigurationError(f"framing is {framing!r}; it must be 'prefix' or 'header'")
        named = _named(subject, schema)
        _check_names(message, [name for name, *_ in named])
        _check_version_used(named, version, pinned)
        if register and schema is None:
            raise ConfigurationError("register=True needs the schema to register (schema=)")
        field = frame.schema[column]
        parts: list[tuple[str | None, str, Schema | Registered]] = []
        for name, own, given in named:
            if own is None:
                raise ConfigurationError(f"encode needs a subject= for {name!r}")
            # Check all parts before any is registered: registering can't be undone.
            if given is None:
                known = self._chosen(frame, own, version, pinned, ENCODE)
                what = f"subject {own!r}, version {known.version}"
                _check_fits(field, _member(name, known.schema, message), what)
                parts.append((name, own, known))
            else:
                wanted = Schema(kind, given)
                _check_fits(field, _member(name, wanted, message), f"subject {own!r}")
                parts.append((name, own, wanted))
        targets = []
        for name, into, one in parts:
            chosen = (
                one
                if isinstance(one, Registered)
                else self._client.registered(into, one, register=register)
            )
            member = _member(name, chosen.schema, message)
            part, as_format = _part(field, name), format_of(member.schema)
            prefix = _header(chosen) if framing == "header" else prefix_of(chosen.number)
            targets.append(
                Target(name, member.schema, part, prefix + as_format.prefix, framing == "header")
            )
        frame = with_own_topic_marked(frame)
        encoding = Encoding(column, targets, of_rows)
        _pin(frame, [one for *_, one in parts if isinstance(one, Registered)], pinned, ENCODE)
        if column in {"key", "value"}:
            # The sink's tasks get these columns, so they can take this step.
            return with_step(frame, encoding)
        return frame.mapInArrow(encoding, encoding.schema(frame.schema))

    def _chosen(
        self,
        frame: DataFrame,
        subject: str,
        version: int | str | None,
        pinned: str | None,
        role: str,
    ) -> Registered:
        """Return the version of a subject to use for a frame."""
        if version not in {None, _LATEST} and not isinstance(version, int):
            raise ConfigurationError(f"version is {version!r}; it must be a number or 'latest'")
        number = version if isinstance(version, int) else None
        if pinned is None:
            return self._client.version(subject, number)
        pins = Pins(_files(frame.sparkSession, pinned), role)
        if version is None and (before := pins.read(subject)) is not None:
            self._check_here(before, pinned)
            self._tell_of_newer(before)
            return before
        return self._client.version(subject, number)

    def _check_here(self, pin: Registered, location: str) -> None:
        """Refuse a pin from another registry, where ids belong to other schemas."""
        here = self._client.schema(pin.number, pin.subject)
        if here != pin.schema:
            raise CheckpointError(
                f"version {pin.version} of subject {pin.subject!r}, pinned in {location!r}, was "
                f"registered as schema id {pin.number} at {pin.registry}, but at "
                f"{self._client.url} {'no' if here is None else 'another'} schema has this id: "
                "use the registry that the query began with. If that registry has moved, pass "
                "version= once, a number or 'latest', to pin the version in the new one"
            )

    def _tell_of_newer(self, pin: Registered) -> None:
        try:
            latest = self._client.version(pin.subject, None)
        except SchemaError:
            return  # The subject was deleted; the pinned schema is still there.
        if latest.version != pin.version:
            warn(
                logger,
                "EOS67",
                "subject %s has version %d, but the query stays with version %d, which it began "
                "with: to get the newer version's columns, pass version=%d once",
                *(pin.subject, latest.version, pin.version, latest.version),
            )


def _pin(frame: DataFrame, used: Collection[Registered], pinned: str | None, role: str) -> None:
    """Pin versions once all checks have accepted them: a refused call must not change the pins."""
    if pinned is not None:
        pins = Pins(_files(frame.sparkSession, pinned), role)
        for registered in used:
            pins.write(registered)


def _files(spark: SparkSession, location: str) -> Files:
    # On Connect, the files are on the server's file system, like the checkpoint.
    return SparkFiles(spark, location) if is_connect(spark) else HadoopFiles(spark, location)


def _check_column(frame: DataFrame, column: str) -> None:
    for name in frame.columns:
        if frame.columns.count(name) > 1:
            raise ConfigurationError(f"there is more than one `{name}` column: rename one of them")
    if column not in frame.columns:
        raise ConfigurationError(
            f"there is no column {column!r}; the columns are {', '.join(frame.columns)}"
        )
    if HEADERS in frame.columns and not _is_as_read(frame.schema[HEADERS].dataType):
        raise ConfigurationError(
            f"`{HEADERS}` is {frame.schema[HEADERS].dataType.simpleString()}, unlike the column of "
            "sink.read with include_headers=True (array<struct<key:string,value:binary>>): convert "
            "it, or rename it"
        )


def _is_as_read(headers: T.DataType) -> bool:
    """Return True if headers have the source's type; `framing` relies on the fields' order."""
    header = headers.elementType if isinstance(headers, T.ArrayType) else headers
    names = header.names if isinstance(header, T.StructType) else []
    return header_type_fits(headers) and names == ["key", "value"]


def _named(
    subject: str | Mapping[str, str] | None, schema: str | Mapping[str, str] | None
) -> list[tuple[str | None, str | None, str | None]]:
    """Return the name, subject and schema of each part of a column."""
    if not isinstance(subject, Mapping) and not isinstance(schema, Mapping):
        return [(None, subject, schema)]
    subjects = subject if isinstance(subject, Mapping) else {}
    schemas = schema if isinstance(schema, Mapping) else {}
    if (subject is not None and subjects is not subject) or (schema and schemas is not schema):
        raise ConfigurationError("subject and schema must both be dicts by name, or neither")
    names = dict.fromkeys([*subjects, *schemas])
    if not names:
        raise ConfigurationError("the dict of subject or schema is empty: name at least one")
    return [(name, subjects.get(name), schemas.get(name)) for name in names]


def _check_names(message: str | Mapping[str, str] | None, names: Collection[str | None]) -> None:
    """Refuse messages for names that are no subjects, since they would have no effect."""
    given = message if isinstance(message, Mapping) else {}
    unknown = ", ".join(repr(name) for name in given if name not in names)
    if unknown:
        raise ConfigurationError(f"message has {unknown}, which is not a name in subject or schema")


def _check_version_used(
    named: Collection[tuple[str | None, str | None, str | None]],
    version: int | str | None,
    pinned: str | None,
) -> None:
    """Refuse a version of subjects whose schemas are all given, since it would have no effect."""
    for argument, value in (("version", version), ("pinned", pinned)):
        if value is not None and all(given is not None for *_, given in named):
            raise ConfigurationError(
                f"{argument} chooses a version of the subject, and schema= gives the schema "
                "itself: leave one of the two out"
            )


def _scope(subjects: Collection[str]) -> str | None:
    """Return the subject for looking up ids; for several subjects, only their common context."""
    contexts = {context_of(subject) for subject in subjects}
    if len(contexts) > 1:
        raise ConfigurationError(
            f"subjects {', '.join(sorted(subjects))} are in several contexts, each of which has "
            "its own schema for an id: decode them from separate topics"
        )
    return next(iter(subjects if len(subjects) == 1 else contexts), None) or None


def _member(name: str | None, schema: Schema, message: str | Mapping[str, str] | None) -> Member:
    """Return a column's member, whose records all have the same full name."""
    if isinstance(message, Mapping):
        message = message.get(name or "")
    schema = replace(schema, message=message)
    record = format_of(schema).name
    if message not in {None, record}:
        raise ConfigurationError(f"message is {message!r}, but the schema is of {record}")
    return Member(name, schema, record)


def _check_told_apart(members: list[Member]) -> None:
    records = [member.record for member in members]
    for member in members[1:]:
        if records.count(member.record) > 1:
            raise SchemaError(
                f"more than one subject has records named {member.record!r}, so they can't be told "
                "apart"
            )


def _header(registered: Registered) -> bytes:
    if registered.guid is None:
        raise ConfigurationError(
            "framing='header' needs schemas with GUIDs, but the registry has none: use 'prefix'"
        )
    return header_of(registered.guid)


def _part(field: T.StructField, name: str | None) -> T.DataType:
    if name is None:
        return field.dataType
    if not isinstance(field.dataType, T.StructType) or name not in field.dataType.names:
        raise SchemaError(
            f"`{field.name}` is {field.dataType.simpleString()}, which has no member {name!r}"
        )
    return field.dataType[name].dataType


def _check_fits(field: T.StructField, member: Member, what: str) -> None:
    """Raise SchemaError if a column, or a member of it, does not fit the member's schema."""
    part, as_format = _part(field, member.name), format_of(member.schema)
    try:
        as_format.encoder(part)
    except SchemaError as error:
        raise SchemaError(f"`{field.name}`: {error.text} ({what})") from None


def _column_type(members: list[Member], types: list[T.DataType]) -> T.DataType:
    if members[0].name is None:
        return types[0]
    pairs = zip(members, types, strict=True)
    return T.StructType([T.StructField(str(member.name), kind) for member, kind in pairs])
