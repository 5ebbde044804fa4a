"""What a killed process had done is known to the step, and what that means is said."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.engine.last_step import LastStep, last_epoch, reached_before, with_last_sign
from holdfast.engine.torch_resume import told_costs
from holdfast.engine.torch_unheard import standing_still
from holdfast.events import (
    AttemptEnded,
    Event,
    LastSign,
    Progress,
    Restored,
    RunEnded,
    RunStarted,
    SaveCommitted,
    SaveFailed,
    SnapshotTaken,
)
from holdfast.policy.failures import FailureHistory
from holdfast.stores.journal import read_events

UUID = "01234567-0123-0123-0123-0123456789ab"

TRAINING = """
import os, signal, sys
import torch
import holdfast

path, dies_at = sys.argv[1], int(sys.argv[2])
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with holdfast.Run(path, every="20 steps", model=model, optimizer=optimizer) as run:
    resumed = run.resumed
    print("resumed", resumed and resumed.step, "lost", resumed and resumed.steps_lost, flush=True)
    for _ in run.steps(200):
        optimizer.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        run.end_step()
        if run.step % 20 == 0:
            run._session.saves.saver.wait_for_all()
        if run.step == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
"""


def train(path: Path, dies_at: int) -> str:
    command = [sys.executable, "-c", TRAINING, str(path), str(dies_at)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == (-signal.SIGKILL if dies_at else 0), done.stderr
    return done.stdout.strip()


def started(time: float, step: int = 0, epoch: int = 1, host: str = "here") -> Event:
    return RunStarted(time=time, step=step, host=host, pid=1, writer_epoch=epoch)


def progress(time: float, step: int) -> Event:
    return Progress(time=time, step=step, epoch=0, step_seconds=0.1)


def test_steps_lost_by_a_kill_are_counted_to_the_step(tmp_path: Path) -> None:
    assert train(tmp_path / "run", dies_at=53) == "resumed None lost None"
    assert train(tmp_path / "run", dies_at=79) == "resumed 40 lost 13"
    # The last attempt's own loss, not what an earlier one had reached beyond it.
    assert train(tmp_path / "run", dies_at=0) == "resumed 60 lost 19"
    events = read_events(tmp_path / "run")
    assert [event.step for event in events if isinstance(event, LastSign)] == [53, 79]
    assert sum(event.steps_lost or 0 for event in events if isinstance(event, Restored)) == 13 + 19
    # And that is where the spell ended that the failure rate is learned from.
    sign = next(event for event in events if isinstance(event, LastSign))
    assert FailureHistory.from_events(events).spells[0].end == sign.time


def test_an_end_in_order_leaves_nothing_in_shared_memory(tmp_path: Path) -> None:
    killed = LastStep(UUID, 2, root=str(tmp_path / "shm"))
    killed.note(4, 90.0)
    written = LastStep(UUID, 3, keep=2, root=str(tmp_path / "shm"))
    written.note(5, 100.0)
    written.close(forget=True)
    assert os.listdir(tmp_path / "shm") == []


def test_what_another_attempt_wrote_is_not_believed(tmp_path: Path) -> None:
    root = str(tmp_path / "shm")
    written = LastStep(UUID, 3, root=root)
    written.note(7, 107.0)
    written.note(8, 108.0)
    events = [started(100.0, epoch=3)]
    assert with_last_sign(events, UUID, root) == [*events, LastSign(time=108.0, step=8)]
    assert with_last_sign([started(100.0, epoch=4)], UUID, root)[-1] == started(100.0, epoch=4)
    LastStep(UUID, 4, keep=3, root=root).note(9, 109.0)
    assert with_last_sign(events, UUID, root)[-1] == LastSign(time=108.0, step=8)
    LastStep(UUID, 5, keep=4, root=root)
    assert with_last_sign(events, UUID, root) == events  # two attempts old: gone


def test_a_half_written_record_is_passed_over(tmp_path: Path) -> None:
    root = str(tmp_path / "shm")
    written = LastStep(UUID, 1, root=root)
    written.note(7, 107.0)
    written.note(8, 108.0)
    file = next((tmp_path / "shm").iterdir())
    raw = bytearray(file.read_bytes())
    raw[0] ^= 1  # of the newer one
    file.write_bytes(raw)
    assert with_last_sign([started(100.0)], UUID, root)[-1] == LastSign(time=107.0, step=7)


def test_where_there_is_no_shared_memory_the_journal_must_do(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "missing" / "shm")
    LastStep(UUID, 1, root=nowhere).note(7, 107.0)
    events = [started(100.0), progress(105.0, 5)]
    assert with_last_sign(events, UUID, nowhere) == events
    assert reached_before(events) == 5


def test_a_restore_counts_what_was_lost_once() -> None:
    restored = Restored(time=20.0, step=3, name="a", seconds=1.0, bytes=1, steps_lost=2)
    assert reached_before([started(0.0), progress(5.0, 5), restored]) is None
    assert reached_before([started(0.0), progress(5.0, 5), restored, started(21.0, 3)]) == 3
    assert last_epoch([]) is None


def saved(time: float, stall: float, size: int = 1000) -> list[Event]:
    return [
        SnapshotTaken(
            time=time, step=1, mode="overlapped", stall_seconds=stall, copy_seconds=0.1, bytes=size
        ),
        SaveCommitted(time=time, step=1, name="a", persist_seconds=10 * stall, bytes=size, reason=""),
    ]


def test_costs_are_taken_from_the_journal_where_no_checkpoint_carries_them() -> None:
    once = told_costs([started(0), progress(1, 1), *saved(2, 0.3)], "here", 1010)
    assert once is not None
    assert (once.stall_seconds, once.persist_seconds, once.saves) == (0.3, 3.0, 1)
    again = told_costs([started(0), *saved(2, 0.3), *saved(3, 0.1), *saved(4, 0.1)], "here", 1000)
    assert again is not None
    assert (again.stall_seconds, again.saves) == (0.1, 2)
    assert told_costs([started(0, host="elsewhere"), *saved(2, 0.3)], "here", 1000) is None
    assert told_costs([started(0), *saved(2, 0.3, size=500)], "here", 1000) is None


def attempts(*reached: int, more: list[Event] | None = None) -> list[Event]:
    events: list[Event] = []
    for number, step in enumerate(reached):
        at = 100.0 * number
        events += [started(at, 40), LastSign(time=at + 5, step=step), *(more or [])]
        events.append(
            AttemptEnded(
                time=at + 5, attempt=number, cause="signal", detail="killed by SIGKILL", planned=False,
                seconds=5.0,
            )
        )  # fmt: skip
    return events


def test_a_run_that_makes_no_headway_says_so_with_the_cause() -> None:
    assert standing_still(attempts(45, 47), 40) is None
    said = standing_still(attempts(45, 47, 44), 40)
    assert said is not None
    assert "3 attempts in a row began at step 40" in said
    assert "killed by SIGKILL" in said
    assert standing_still(attempts(45, 47, 44), 41) is None  # there is a new checkpoint


@pytest.mark.parametrize(
    ("reached", "more", "word"),
    [
        ((52, 52, 52), [], "All of them ended at step 52"),
        ((51, 52, 53), [SaveFailed(time=1, step=50, error="disk full")], "disk full"),
        ((51, 52, 53), saved(1.0, 0.5), "nearer tier would help"),
        ((51, 52, 53), [], "max_loss="),
    ],
)
def test_what_would_help_depends_on_what_went_wrong(
    reached: tuple[int, ...], more: list[Event], word: str
) -> None:
    said = standing_still(attempts(*reached, more=more), 40)
    assert said is not None
    assert word in said


def test_ends_that_somebody_asked_for_are_no_standing_still() -> None:
    events: list[Event] = []
    for at in (0.0, 100.0, 200.0):
        events += [started(at, 40), RunEnded(time=at + 5, step=44, how="stopped")]
    assert standing_still(events, 40) is None
