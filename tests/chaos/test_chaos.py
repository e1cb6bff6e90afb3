"""Faults from a fixed seed against a running query; ``make chaos`` uses other seeds."""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import spark_eos
from chaos.breakages import FOUND_BY_TESTS, MUTATIONS, mutated
from chaos.every_load import EVERY_LOAD, EVERY_STAGED_LOAD
from chaos.faults import are_restored
from chaos.schedule import (
    ALONE,
    ASYNCHRONOUS,
    BROKER,
    CLUSTER_ONLY,
    FRONTS,
    LOADS_WITH_REGISTRY,
    MIRRORED_ONLY,
    NETWORK,
    NODES,
    NOT_OF_THE_SINK,
    REGISTRY_ONLY,
    STAGED_LOADS,
    STAGED_ONLY,
    TAKE_OVER,
    Kind,
    Moment,
    moments_of,
    schedule,
)
from spark_eos import ExactlyOnceSink
from spark_eos._kafka.offset_metadata import CommittedOffset
from spark_eos._kafka.topic_partition import TopicPartition
from support.jobs import ROOT
from support.sinks import arguments

_TESTS = ROOT / "tests"


@pytest.mark.parametrize("load", EVERY_LOAD)
def test_a_load_sets_options_that_the_sink_has(load: str) -> None:
    assert (load in STAGED_LOADS) == (load in EVERY_STAGED_LOAD)
    assert (load in LOADS_WITH_REGISTRY) == (EVERY_LOAD[load].of_registry is not None)
    given = arguments(**EVERY_LOAD[load].options)
    assert given.keys() <= inspect.signature(ExactlyOnceSink).parameters.keys()


def test_a_seed_determines_the_whole_schedule() -> None:
    one, again = (schedule(5, steps=40, loads=tuple(EVERY_LOAD)) for _ in range(2))
    assert one == again
    assert one != schedule(6, steps=40, loads=tuple(EVERY_LOAD))


def test_offsets_are_restored_if_none_lies_below_what_was_known() -> None:
    one, other = TopicPartition("in", 0), TopicPartition("in", 1)
    known = {one: CommittedOffset(5, ""), other: CommittedOffset(7, "")}
    assert are_restored({one: 5, other: 9}, known)
    assert are_restored({one: 5}, known)  # the other offset may be in a request of its own
    assert not are_restored({one: 5, other: 6}, known)


def test_a_front_has_the_faults_that_can_be_done_to_it() -> None:
    loads = ("relay", "windows")
    for front in FRONTS:
        in_one_process = front in ("sink", "staged", "mirrored")
        for seed in range(5):
            found = schedule(seed, steps=60, loads=loads, fronts=[front])
            kinds = {fault.kind for fault in found.faults}
            assert found.front == front
            assert found.load == loads[front == "staged"]
            assert kinds & NOT_OF_THE_SINK == (set() if in_one_process else NOT_OF_THE_SINK)
            assert kinds & STAGED_ONLY == (STAGED_ONLY if front == "staged" else set())
            assert kinds & MIRRORED_ONLY == (MIRRORED_ONLY if front == "mirrored" else set())
            asynchronous = ASYNCHRONOUS if front in ("sink", "mirrored") else set()
            assert kinds & ASYNCHRONOUS == asynchronous
            starts = {found.asynchronous(start) for start in range(20)}
            assert starts == ({True, False} if asynchronous else {False})
            assert not found.cluster or in_one_process
            on_yarn = schedule(1, steps=1, loads=loads, fronts=[front], cluster=True, yarn=True)
            assert on_yarn.yarn is in_one_process
    seen = {schedule(seed, steps=1, loads=loads).front for seed in range(30)}
    assert seen == set(FRONTS)
    assert schedule(1, steps=1, loads=["windows"]).front == "staged"


def test_every_kind_has_its_turn_before_any_comes_twice() -> None:
    found = schedule(5, steps=60, loads=["relay"], fronts=["sink"], cluster=True)
    kinds = [fault.kind for fault in found.faults]
    possible = set(Kind) - NOT_OF_THE_SINK - STAGED_ONLY - MIRRORED_ONLY - REGISTRY_ONLY - NODES
    assert set(kinds[: len(possible)]) == possible
    assert any(len(step.faults) == 2 for step in found.steps)
    assert not any(
        len(pair) == 2 and (ALONE & pair or pair <= NETWORK or pair <= BROKER)
        for step in found.steps
        if (pair := {fault.kind for fault in step.faults})
    )
    assert possible >= CLUSTER_ONLY
    local = schedule(5, steps=60, loads=["relay"], fronts=["sink"], cluster=False)
    assert not CLUSTER_ONLY & {fault.kind for fault in local.faults}


def test_with_several_nodes_each_step_has_one_fault_of_a_node() -> None:
    found = schedule(5, steps=60, loads=["relay"], fronts=["sink"], nodes=3)
    first = [step.faults[0].kind for step in found.steps]
    assert set(first[: len(NODES)]) == NODES == set(first)
    others = {fault.kind for step in found.steps for fault in step.faults[1:]}
    assert others
    assert not others & (NODES | BROKER | ALONE)
    own = schedule(5, steps=60, loads=["relay"], kinds=[Kind.LEADER_KILL], nodes=3)
    assert {fault.kind for fault in own.faults} == {Kind.LEADER_KILL}


@pytest.mark.parametrize("nodes", [1, 3])
def test_faults_are_done_at_moments_and_at_any_time(nodes: int) -> None:
    found = schedule(5, steps=10_000, loads=["relay"], fronts=["sink"], cluster=True, nodes=nodes)
    times = {(fault.kind, fault.at) for fault in found.faults}
    for kind in {step.faults[0].kind for step in found.steps}:
        any_time = set() if kind is Kind.ASYNCHRONOUS_KILL else {None}
        assert {at for one, at in times if one is kind} == moments_of(kind) | any_time, kind
    pairs = [step.faults for step in found.steps if len(step.faults) == 2]
    assert not any(fault.at in TAKE_OVER for pair in pairs for fault in pair)


def test_all_faults_are_done_at_the_moments_asked_for() -> None:
    for at in (Moment.FENCED,), (Moment.ENDED, Moment.FENCED):
        found = schedule(5, steps=60, loads=["relay"], fronts=["sink"], at=at)
        assert {fault.at for fault in found.faults} == set(at)
    with pytest.raises(ValueError, match="at=\\['fenced'\\]"):
        schedule(5, steps=1, loads=["relay"], kinds=[Kind.TASK_SLEEP], at=[Moment.FENCED])


@pytest.mark.parametrize("name", [*MUTATIONS, *FOUND_BY_TESTS])
def test_every_mutation_has_its_place_in_the_code(name: str, tmp_path: Path) -> None:
    project = mutated(name, tmp_path)
    original = Path(spark_eos.__file__).parents[1]
    files = [file.relative_to(original) for file in original.glob("spark_eos/**/*.py")]
    changed = {str(f) for f in files if (project / f).read_bytes() != (original / f).read_bytes()}
    patch = (_TESTS / "chaos" / "mutations" / f"{name}.patch").read_text()
    assert changed == set(re.findall(r"^\+\+\+ b/(\S+)$", patch, re.MULTILINE)) != set()


def test_every_mutation_must_be_detected() -> None:
    patches = {path.stem for path in (_TESTS / "chaos" / "mutations").glob("*.patch")}
    assert {*MUTATIONS, *FOUND_BY_TESTS} == patches
    assert not MUTATIONS.keys() & FOUND_BY_TESTS.keys()
    for test in FOUND_BY_TESTS.values():
        file, _, function = test.partition("::")
        assert f"\ndef {function}(" in (ROOT / file).read_text(), test


@pytest.mark.slow
@pytest.mark.parametrize("name", FOUND_BY_TESTS)
def test_mutations_that_no_trial_detects_fail_a_test(name: str, tmp_path: Path) -> None:
    project = mutated(name, tmp_path)
    # Not python -m pytest, which would import the package in the current directory.
    pytest_itself = str(Path(sys.executable).with_name("pytest"))
    options = ("-p", "no:randomly", "-p", "no:cacheprovider", "--color", "no")
    ran = subprocess.run(
        [pytest_itself, FOUND_BY_TESTS[name], *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{project}{os.pathsep}{_TESTS}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ran.returncode == 1, ran.stdout[-4_000:]
    assert re.search(r"^1 failed(, 1 passed)? in ", ran.stdout, re.MULTILINE), ran.stdout[-4_000:]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("front", "steps", "kinds", "nodes"),
    [
        pytest.param(
            "sink",
            6,
            ["worker-kill", "user-exception", "network-cut", "late-offsets", "broker-restart"],
            1,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "staged",
            3,
            ["relay-kill", "before-sweep-freeze", "user-exception"],
            1,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "mirrored",
            3,
            ["driver-kill", "source-broker-restart", "source-network-cut", "broker-restart"],
            1,
            marks=pytest.mark.slow,
        ),
        pytest.param("connect", 2, ["holder-kill", "worker-kill"], 1, marks=pytest.mark.slow),
        pytest.param(
            "sink",
            5,
            [
                "leader-kill",
                "coordinator-freeze",
                "group-coordinator-move",
                "controller-stop",
                "coordinator-parted",
            ],
            3,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_nothing_is_lost_or_doubled_under_faults(
    front: str, steps: int, kinds: list[str], nodes: int, tmp_path: Path
) -> None:
    """A few faults, few of which need a new JVM; ``make chaos`` includes all faults."""
    load = "shuffled" if front == "staged" else "enrich"
    # Without broker-kill, which sometimes hits KAFKA-20734.
    arguments = [part for kind in kinds for part in ("--kind", kind)]
    run = subprocess.run(
        [sys.executable, "-m", "chaos", "--seed", "11", "--seeds", "1", "--steps", str(steps),
         "--load", load, "--front", front, "--local", "--nodes", str(nodes),
         *arguments],
        env={**os.environ, "PYTHONPATH": str(_TESTS), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=880,
        check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
