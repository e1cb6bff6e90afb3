"""Faults that only staged queries have, or that affect them differently from direct queries."""

import shutil
import time
from collections.abc import Callable

from chaos import staged_places
from chaos.invariants import Rule, ViolationError
from chaos.moments import AN_OCCASION
from chaos.schedule import Fault, Kind
from chaos.second_drivers import frozen_query
from chaos.stage import NotInflictedError, Stage, TrialError, wait_for
from chaos.staged_files import StagedFiles

_PATIENCE = 240.0


def staged_files(stage: Stage) -> StagedFiles:
    """The checkpoint of a staged query."""
    assert stage.staged is not None
    return stage.staged


# At the places of a staged batch ------------------------------------------------------------


def _come_to(stage: Stage, place: str) -> None:
    """Waits until the driver has stopped at a place."""
    staged_places.ask(stage.control, place)
    end = time.monotonic() + AN_OCCASION
    while not staged_places.is_reached(stage.control, place):
        if time.monotonic() > end and staged_places.take_back(stage.control, place):
            raise NotInflictedError(f"no batch has come to {place}")
        stage.keep_going()
        time.sleep(0.01)


def kill_at(place: str) -> Callable[[Stage, Fault], None]:
    """Kills the whole query at a place of the driver or of a task that stages rows."""

    def kill(stage: Stage, _fault: Fault) -> None:
        _come_to(stage, place)
        stage.query.kill()

    return kill


def freeze_at(place: str) -> Callable[[Stage, Fault], None]:
    """The whole query sleeps at a place while another one runs, then both run."""

    def freeze(stage: Stage, fault: Fault) -> None:
        _come_to(stage, place)
        frozen_query(stage, fault)

    return freeze


# What a staged query refuses ------------------------------------------------------------------


def _refused(stage: Stage, words: str, rule: Rule) -> None:
    """Starts the query, which must end with this error and finish no batch."""
    stage.start()
    end = time.monotonic() + _PATIENCE
    while stage.query.exit_status() is None:
        if stage.query.reports():
            raise ViolationError(rule, f"it has finished a batch: {stage.query.log.name}")
        if time.monotonic() > end:
            raise TrialError(f"the query neither goes on nor ends: {stage.query.log}")
        time.sleep(0.05)
    if words not in stage.query.text():
        raise TrialError(
            f"the query has ended with something else than {words!r}: {stage.query.log}"
        )
    stage.query.kill()


def delete_checkpoint(stage: Stage, _fault: Fault) -> None:
    """The query must refuse to continue until its checkpoint is restored."""
    stage.query.kill()
    aside = stage.directory / "checkpoint-aside"
    with stage.watcher.offsets_may_go_back():
        stage.checkpoint.rename(aside)
        words = "can't be continued without its own checkpoint"
        _refused(stage, words, Rule.STOPS_WITHOUT_STATE)
        shutil.rmtree(stage.checkpoint)
        aside.rename(stage.checkpoint)
    stage.start()


def roll_back(change: Callable[[Stage, Fault], None]) -> Callable[[Stage, Fault], None]:
    """Restores an older checkpoint: the query continues if nothing is lost, or refuses."""

    def rolled(stage: Stage, fault: Fault) -> None:
        stage.query.kill()
        aside = stage.directory / "checkpoint-aside"
        with stage.watcher.offsets_may_go_back():
            shutil.copytree(stage.checkpoint, aside)
            change(stage, fault)
            stage.start()
            wait_for(
                lambda: stage.query.reports() or stage.query.exit_status() is not None,
                time.monotonic() + _PATIENCE,
                f"the query neither goes on nor ends: {stage.query.log}",
            )
            if not stage.query.reports():
                if "CheckpointError" not in stage.query.text():
                    raise TrialError(f"the query has ended with another error: {stage.query.log}")
                stage.query.kill()
                shutil.rmtree(stage.checkpoint)
                aside.rename(stage.checkpoint)
                stage.start()
        shutil.rmtree(aside, ignore_errors=True)

    return rolled


def copy_removed(stage: Stage, _fault: Fault) -> None:
    """Removes a file of the current copy: the query must refuse to continue without it."""
    _come_to(stage, staged_places.BEFORE_RELAY)
    stage.query.kill()
    file = staged_files(stage).file_with_rows(stage.group_offsets() or {})
    if file is None:
        stage.start()
        raise NotInflictedError("the copy has no rows")
    aside = stage.directory / file.name
    with stage.watcher.offsets_may_go_back():
        file.rename(aside)
        # Rows of the remaining files may be written, but the batch must not be finished.
        _refused(stage, "files of it were removed or changed", Rule.COPY_WHOLE)
        aside.rename(file)
    stage.start()


DEEDS: dict[Kind, Callable[[Stage, Fault], None]] = {
    Kind.STAGING_KILL: kill_at(staged_places.STAGING),
    Kind.BEFORE_STAGED_COMMIT_KILL: kill_at(staged_places.BEFORE_STAGED_COMMIT),
    Kind.AFTER_STAGED_COMMIT_KILL: kill_at(staged_places.BEFORE_SWEEP),
    Kind.BEFORE_END_KILL: kill_at(staged_places.BEFORE_END),
    Kind.BEFORE_COMMIT_KILL: kill_at(staged_places.BEFORE_COMMIT),
    Kind.BEFORE_STAGED_COMMIT_FREEZE: freeze_at(staged_places.BEFORE_STAGED_COMMIT),
    Kind.BEFORE_SWEEP_FREEZE: freeze_at(staged_places.BEFORE_SWEEP),
    Kind.BEFORE_RELAY_FREEZE: freeze_at(staged_places.BEFORE_RELAY),
    Kind.COPY_REMOVED: copy_removed,
    Kind.CHECKPOINT_DELETED: delete_checkpoint,
}
