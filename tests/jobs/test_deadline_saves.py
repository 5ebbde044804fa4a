"""The last checkpoint before a deadline, with time that only moves when the test says so."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

import holdfast
from holdfast.events import RunEnded, SaveCommitted
from holdfast.jobs.exit_codes import PLEASE_RUN_AGAIN
from holdfast.stores.journal import read_events
from holdfast.testing.fake_clock import FakeClock

STEP_SECONDS = 0.4
TIME_LIMIT = 100.0


class SlowSaves:
    """Every save takes its time, on the pretended clock and in the training thread's stead.

    The write itself is real. Its duration varies by a quarter around `usual`, as a shared disk's does.
    """

    def __init__(self, clock: FakeClock, usual: float, luck: random.Random) -> None:
        self.clock, self.usual, self.luck = clock, usual, luck
        self.durations: list[float] = []
        self.committed_at: list[float] = []

    def slow_down(self, run: holdfast.Run) -> None:
        saver = run._session.saves.saver  # type: ignore[union-attr]
        persist = saver._persist

        def slow(handle: Any, *rest: Any) -> None:
            seconds = self.usual * self.luck.uniform(0.75, 1.25)
            write = saver._write

            def slow_write(*arguments: Any) -> Any:
                committed = write(*arguments)
                self.clock.advance(seconds)
                handle.persist_seconds = seconds
                return committed

            saver._write = slow_write
            try:
                persist(handle, *rest)
            finally:
                saver._write = write
            self.durations.append(seconds)
            self.committed_at.append(self.clock.wall())

        saver._persist = slow


def train_until_the_deadline(
    folder: Path,
    save_seconds: float,
    luck: random.Random,
    step_seconds: float = STEP_SECONDS,
    **settings: Any,
) -> tuple[float, SlowSaves, FakeClock]:
    clock = FakeClock()
    deadline = clock.wall() + TIME_LIMIT
    saves = SlowSaves(clock, save_seconds, luck)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tracked = {"model": model, "optimizer": optimizer}

    def script() -> None:
        with holdfast.Run(
            folder, clock=clock, deadline=f"@{deadline}", copy="blocking", **settings, **tracked
        ) as run:
            saves.slow_down(run)
            for _ in run.steps(10**9):
                optimizer.zero_grad()
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()
                clock.advance(step_seconds * luck.uniform(0.9, 1.1))
                run.end_step()
                # One save at a time, each done before the next step: time stands still in this test.
                for handle in list(run._session.saves.saver._pending):  # type: ignore[union-attr]
                    handle.wait(60)

    with pytest.raises(SystemExit) as left:
        script()
    assert left.value.code == PLEASE_RUN_AGAIN
    return deadline, saves, clock


@pytest.mark.parametrize("number", range(50))
def test_the_last_checkpoint_is_in_time_and_not_needlessly_early(tmp_path: Path, number: int) -> None:
    luck = random.Random(number)
    usual = 0.1 * 50 ** luck.random()  # 0.1 to 5 s
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "TIME_LIMIT", 50.0)
        # Steps shorter than any save: a save starts at a boundary, and can be early by a step for that alone.
        deadline, saves, clock = train_until_the_deadline(
            tmp_path / "run", usual, luck, step_seconds=0.05, every="12 s"
        )
    last = saves.committed_at[-1]
    p99 = 1.25 * usual
    assert last <= deadline, f"the last checkpoint came {last - deadline:.2f} s late"
    assert deadline - last <= 2 * p99, f"{deadline - last:.2f} s early, p99 is {p99:.2f} s"
    assert clock.wall() <= deadline, "the process was still there when it was to be ended"
    events = read_events(tmp_path / "run")
    assert [event.why for event in events if isinstance(event, RunEnded)] == ["deadline (deadline=)"]
    commits = [event for event in events if isinstance(event, SaveCommitted)]
    assert commits[-1].reason.startswith("the last save before the deadline")
    assert commits[-1].step == holdfast.checkpoints(tmp_path / "run")[0].step


def test_the_learned_policy_keeps_the_deadline_too(tmp_path: Path) -> None:
    deadline, saves, _ = train_until_the_deadline(tmp_path / "run", 2.0, random.Random(1))
    assert deadline - 7.0 <= saves.committed_at[-1] <= deadline


def test_a_limit_shorter_than_the_first_guess_is_still_used(tmp_path: Path) -> None:
    """Nothing is measured and a minute is guessed: one save tells, and most of the time is trained."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "TIME_LIMIT", 50.0)
        deadline, saves, _ = train_until_the_deadline(tmp_path / "run", 0.5, random.Random(1))
    commits = [event for event in read_events(tmp_path / "run") if isinstance(event, SaveCommitted)]
    assert "to know how long" in commits[0].reason
    assert deadline - 3.0 <= saves.committed_at[-1] <= deadline


def test_the_next_process_needs_no_new_measurement(tmp_path: Path) -> None:
    train_until_the_deadline(tmp_path / "run", 2.0, random.Random(1), every="12 s")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "TIME_LIMIT", 20.0)
        deadline, saves, _ = train_until_the_deadline(tmp_path / "run", 2.0, random.Random(2), every="12 s")
    assert len(saves.committed_at) == 1
    assert deadline - 8.0 <= saves.committed_at[0] <= deadline
