"""The pure parts: offset log, assigned-partition rule, plans, rows, names, verdicts."""

import random
import re
import uuid
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_eos import errors
from spark_eos.batch import plan
from spark_eos.batch.plan import BatchRange
from spark_eos.client.error_codes import Code, Verdict, verdict
from spark_eos.client.settings import ClientSettings
from spark_eos.driver.assigned_partitions import Member, after_heartbeat, may_commit, owners
from spark_eos.driver.offset_log import OffsetLog, parse_positions
from spark_eos.driver.preflight import offset_commit_version
from spark_eos.kafka.cluster import BrokerFeatures
from spark_eos.kafka.offset_metadata import KnownPartitions
from spark_eos.kafka.transactional_ids import id_pattern, id_stem
from spark_eos.kafka.transactions import MemberIdentity
from spark_eos.worker.records import RowError, source_rows
from spark_eos.worker.slot import Slot

_TOPIC = uuid.uuid4()


class _Files(dict[str, str]):
    def read(self, path: str) -> str | None:
        return self.get(path)

    def names(self, path: str) -> list[str]:
        return sorted({name.split("/")[1] for name in self if name.startswith(f"{path}/")})

    def write(self, path: str, text: str) -> None:
        self[f"{path}/part-0.txt"] = text


def test_batch_0_starts_where_its_sources_say() -> None:
    log = OffsetLog(
        _Files(
            {
                "sources/0/0": '\x00v1\n{"a":{"0":3,"1":0}}',
                "sources/1/0": '\x00v1\n{"b":{"0":7}}',
                "offsets/0": 'v1\n{"batchWatermarkMs":0}\n{"a":{"0":5,"1":0}}\n{"b":{"0":9}}',
            }
        )
    )
    assert log.batch_range(0) == BatchRange(
        0,
        {("a", 0): 3, ("a", 1): 0, ("b", 0): 7},
        {("a", 0): 5, ("a", 1): 0, ("b", 0): 9},
    )


def test_later_batches_start_where_the_one_before_ended() -> None:
    files = _Files(
        {
            "offsets/4": 'v1\n{}\n{"a":{"0":5}}\n-',
            "offsets/5": 'v2\n{}\n1:{"b":{"0":1}}\n0:{"a":{"0":8,"1":2}}',
        }
    )
    expected = BatchRange(5, {("a", 0): 5}, {("a", 0): 8, ("a", 1): 2, ("b", 0): 1})
    log = OffsetLog(files)
    assert log.batch_range(5) == expected
    # The same batch again, as after a failure; and the next needs no second look at this one.
    assert log.batch_range(5) == expected
    files["offsets/6"] = 'v1\n{}\n{"a":{"0":9,"1":2}}'
    del files["offsets/4"]
    del files["offsets/5"]
    assert log.batch_range(6).starts == expected.ends


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "offsets/3 is missing"),
        ({"offsets/3": "v1\n{}\n", "offsets/4": "v9\n{}\n"}, "unknown format 'v9'"),
        ({"offsets/3": "v1\n{}\n7"}, "not Kafka's"),
        ({"offsets/3": 'v1\n{}\n{"a":{"0":1}}\n{"a":{"0":1}}'}, "two sources .* read a-0"),
    ],
)
def test_offset_logs_that_can_not_be_used(files: dict[str, str], words: str) -> None:
    with pytest.raises(errors.CheckpointError, match=words):
        OffsetLog(_Files(files)).batch_range(4)


def test_no_checkpoint_at_all() -> None:
    with pytest.raises(errors.CheckpointError, match="no streaming checkpoint"):
        OffsetLog(_Files()).query_id()


def test_a_source_without_offsets_has_no_positions() -> None:
    assert parse_positions(["-", ""], "here") == {}


# The assigned-partition rule -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("assigned", "client_epoch", "allowed"),
    [
        ({}, 5, False),  # assigned to nobody, or to another member
        ({(_TOPIC, 0): 5}, 5, True),
        ({(_TOPIC, 0): 3}, 4, True),  # a heartbeat has raised the broker's epoch since
        ({(_TOPIC, 0): 5}, 4, False),  # revoked and given back since
        ({(_TOPIC, 0): 5}, 6, False),  # from the future
    ],
)
def test_the_assigned_partition_rule(
    assigned: dict[tuple[uuid.UUID, int], int],
    client_epoch: int,
    allowed: bool,  # noqa: FBT001
) -> None:
    member = Member("spark-eos-0", "m", 5, assigned)
    assert may_commit(member, (_TOPIC, 0), client_epoch) is allowed


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.one_of(st.none(), st.frozensets(st.integers(0, 3)))),
        max_size=30,
    )
)
def test_assignment_epochs_against_a_plain_history(
    beats: list[tuple[int, frozenset[int] | None]],
) -> None:
    member, history = Member("spark-eos-0", "m", 1), [(1, frozenset[int]())]
    for step, assigned in beats:
        epoch = history[-1][0] + step
        now = history[-1][1] if assigned is None else assigned
        history.append((epoch, now))
        given_now = None if assigned is None else {(_TOPIC, p) for p in assigned}
        member = after_heartbeat(member, epoch, given_now)
    last = history[-1][0]
    for partition in range(4):
        for client_epoch in range(last + 2):
            expected = client_epoch <= last and _unbroken(history, partition, client_epoch)
            assert may_commit(member, (_TOPIC, partition), client_epoch) is expected


def _unbroken(history: list[tuple[int, frozenset[int]]], partition: int, client_epoch: int) -> bool:
    """Whether the partition's present tenure began at the client's epoch or before."""
    began = None
    for epoch, held in history:
        if partition not in held:
            began = None
        elif began is None:
            began = epoch
    return began is not None and began <= client_epoch


def test_each_partition_has_one_owner() -> None:
    first = Member("spark-eos-0", "a", 3, {(_TOPIC, 0): 2})
    second = Member("spark-eos-1", "b", 3, {(_TOPIC, 1): 3})
    assert owners([first, second]) == {(_TOPIC, 0): first, (_TOPIC, 1): second}


# Plans ---------------------------------------------------------------------------------------

_MEMBER = MemberIdentity("m", 1, "spark-eos-0")


def test_progress_at_and_beyond_the_range_is_fine() -> None:
    batch = BatchRange(1, {("a", 0): 5, ("a", 1): 5}, {("a", 0): 8, ("a", 1): 8, ("a", 2): 3})
    plan.check_no_gap("g", batch, {("a", 0): 5, ("a", 1): 9})
    known = KnownPartitions().including([("a", 0), ("a", 1)], {})
    planned = plan.batch_plan(batch, {("a", 0): 6}, {("a", 0): _MEMBER}, {"a": _TOPIC}, known)
    expected = plan.PartitionPlan(_TOPIC, 5, 8, 6, _MEMBER, known.metadata("a"))
    assert planned == {("a", 0): expected}


def test_a_dropped_partition_needs_no_check() -> None:
    plan.check_no_gap("g", BatchRange(3, {("gone", 0): 5}, {("a", 0): 8}), {("a", 0): 1})


def test_a_gap_is_refused() -> None:
    batch = BatchRange(2, {("a", 0): 5}, {("a", 0): 8})
    with pytest.raises(errors.OffsetGapError, match="offsets 3 to 4 would never be written"):
        plan.check_no_gap("g", batch, {("a", 0): 3})


# Rows ----------------------------------------------------------------------------------------


def _batch(rows: Sequence[tuple[str | None, int, int]]) -> pa.RecordBatch:
    topics, partitions, offsets = zip(*rows, strict=True)
    return pa.RecordBatch.from_pydict(
        {
            "source_topic": pa.array(topics, pa.string()),
            "source_partition": pa.array(partitions, pa.int32()),
            "source_offset": pa.array(offsets, pa.int64()),
            "value": pa.array([b"v"] * len(rows), pa.binary()),
        }
    )


def test_rows_split_where_the_source_partition_changes() -> None:
    batch = _batch([("a", 0, 1), ("a", 0, 2), ("a", 1, 0), ("b", 1, 0), ("b", 1, 0)])
    found = [(r.topic, r.partition, r.offsets.to_pylist()) for r in source_rows(batch)]
    assert found == [("a", 0, [1, 2]), ("a", 1, [0]), ("b", 1, [0, 0])]


def test_rows_below_the_committed_offset_are_left_out() -> None:
    (rows,) = source_rows(_batch([("a", 0, n) for n in range(10)]))
    assert rows.at_or_above(4).offsets.to_pylist() == [4, 5, 6, 7, 8, 9]
    assert rows.at_or_above(0).offsets.to_pylist() == list(range(10))
    assert rows.at_or_above(10).offsets.to_pylist() == []


def test_slices_hold_all_rows_in_order() -> None:
    (rows,) = source_rows(_batch([("a", 0, n) for n in range(2_345)]))
    slices = list(rows.slices())
    assert [o for s in slices for o in s.offsets.to_pylist()] == list(range(2_345))
    assert max(s.rows.num_rows for s in slices) == 1_000


def test_slices_are_cut_between_records() -> None:
    (rows,) = source_rows(
        _batch([("a", 0, n // 300) for n in range(1_200)] + [("a", 0, 4)] * 1_500)
    )
    found = [(s.rows.num_rows, s.first_offset, s.last_offset) for s in rows.slices()]
    assert found == [(900, 0, 2), (300, 3, 3), (1_000, 4, 4), (500, 4, 4)]


def test_rows_that_are_not_in_order() -> None:
    wrong, right = source_rows(_batch([("a", 0, 2), ("a", 0, 1), ("a", 1, 1), ("a", 1, 1)]))
    assert not wrong.in_order
    assert right.in_order


def test_a_row_without_a_source() -> None:
    with pytest.raises(RowError):
        list(source_rows(_batch([(None, 0, 1)])))


# Names ---------------------------------------------------------------------------------------


@given(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20))
def test_a_groups_ids_match_its_own_pattern_only(one: str, other: str) -> None:
    own = f"{id_stem('spark-eos', one)}/node-1/0"
    assert re.fullmatch(id_pattern("spark-eos", one), own)
    if one != other:
        assert not re.fullmatch(id_pattern("spark-eos", other), own)
    assert not re.fullmatch(id_pattern("spark-eos", one), f"{own}/0")


def test_slots_are_the_lowest_free_ones(tmp_path: Path) -> None:
    directory = str(tmp_path)
    slots = [Slot("p", "g", directory) for _ in range(3)]
    assert [s.transactional_id.rsplit("/", 1)[1] for s in slots] == ["0", "1", "2"]
    assert len({s.transactional_id.rsplit("/", 1)[0] for s in slots}) == 1
    assert Slot("p", "other", directory).transactional_id.endswith("/0")
    slots[1].release()
    assert Slot("p", "g", directory).transactional_id == slots[1].transactional_id


def test_a_directory_that_can_not_be_used() -> None:
    with pytest.raises(errors.ConfigurationError, match="worker_directory"):
        Slot("p", "g", "/proc/nowhere")


# Verdicts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([0, 0], Verdict.ACCEPTED),
        ([0, Code.UNKNOWN_TOPIC_ID], Verdict.RETRY),
        ([Code.CONCURRENT_TRANSACTIONS, Code.NOT_COORDINATOR], Verdict.REDISCOVER),
        ([Code.COORDINATOR_LOAD_IN_PROGRESS, Code.STALE_MEMBER_EPOCH], Verdict.REJECTED),
        ([0, Code.UNASSIGNED_PARTITION], Verdict.REJECTED),
        ([Code.STALE_MEMBER_EPOCH, Code.INVALID_PRODUCER_EPOCH], Verdict.FENCED),
        ([0, 29], Verdict.REFUSED),
        ([12345], Verdict.REFUSED),
        ([-1], Verdict.REFUSED),
        ([], Verdict.REFUSED),
    ],
)
def test_the_worst_code_decides(codes: list[int], expected: Verdict) -> None:
    shuffled = random.sample(codes, len(codes))
    assert verdict(shuffled) is expected


@pytest.mark.parametrize("name", ["ssl.key.password", "sasl.password", "sasl.username"])
def test_secrets_are_not_shown(name: str) -> None:
    with pytest.raises(errors.ConfigurationError) as refusal:
        ClientSettings({"bootstrap.servers": "a:1", name: "marker-secret"})
    assert "marker-secret" not in str(refusal.value)
    shown = repr(ClientSettings({"bootstrap.servers": "a:1", "client.id": "me"}))
    assert "me" in shown


_HEARTBEAT, _TXN_OFFSET_COMMIT = 68, 28


@pytest.mark.parametrize(("greatest", "expected"), [(5, 5), (6, 6), (7, 6)])
def test_the_newest_version_that_both_speak_is_sent(greatest: int, expected: int) -> None:
    features = BrokerFeatures(
        {_HEARTBEAT: 1, _TXN_OFFSET_COMMIT: greatest}, {"transaction.version": 2}
    )
    assert offset_commit_version(features, "a:1") == expected


@pytest.mark.parametrize(
    ("versions", "level", "words"),
    [
        ({_HEARTBEAT: 1, _TXN_OFFSET_COMMIT: 4}, 2, r"TxnOffsetCommit 5.*Kafka 4\.0 or newer"),
        ({_TXN_OFFSET_COMMIT: 5}, 2, "no ConsumerGroupHeartbeat"),
        ({_HEARTBEAT: 1, _TXN_OFFSET_COMMIT: 6}, 1, r"transaction\.version=1.*upgrade"),
        ({_HEARTBEAT: 1, _TXN_OFFSET_COMMIT: 6}, None, r"transaction\.version=0"),
    ],
)
def test_brokers_that_are_too_old(versions: dict[int, int], level: int | None, words: str) -> None:
    features = {} if level is None else {"transaction.version": level}
    with pytest.raises(errors.UnsupportedBrokerError, match=words):
        offset_commit_version(BrokerFeatures(versions, features), "a:1")
