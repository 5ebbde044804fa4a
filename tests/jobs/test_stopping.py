"""Signals in every phase: one clean commit, the documented code, the same bits after a restart."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from small_training import EPOCHS, STEPS_PER_EPOCH, train

import holdfast
from holdfast.engine.stopping import Stopped
from holdfast.errors import StoreFull
from holdfast.events import RunEnded, SaveCommitted
from holdfast.jobs.exit_codes import INTERRUPTED, PLEASE_RUN_AGAIN, STOPPED_UNSAVED
from holdfast.jobs.notices import Notice
from holdfast.stores.journal import read_events


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    return train(tmp_path_factory.mktemp("undisturbed") / "run")


class Once:
    """At the n-th visit of a place, do something."""

    def __init__(self, place: str, visit: int, action: Callable[[], None]) -> None:
        self.place, self.left, self.action = place, visit, action

    def __call__(self, place: str) -> None:
        if place == self.place:
            self.left -= 1
            if self.left == 0:
                self.action()


def send(*numbers: int) -> Callable[[], None]:
    return lambda: [os.kill(os.getpid(), number) for number in numbers] and None


def stops(folder: Path, at: Callable[[str], None], code: int = PLEASE_RUN_AGAIN) -> RunEnded:
    """Train until the stop; exactly one end in the journal, and the last checkpoint is its step's."""
    with pytest.raises(SystemExit) as left:
        train(folder, at)
    assert left.value.code == code
    ends = [event for event in read_events(folder) if isinstance(event, RunEnded)]
    assert [end.how for end in ends] == ["stopped"]
    saves = [event for event in read_events(folder) if isinstance(event, SaveCommitted)]
    assert saves[-1].step == ends[0].step == holdfast.checkpoints(folder)[0].step
    # On a busy disk a save by rhythm may be late and fall on the step of the stop, before its epoch ends.
    routine = [save.step for save in saves if not save.reason.startswith("stopping")]
    assert len(routine) == len(set(routine)), "a step was saved twice"
    assert len(saves) - len(routine) <= 1, "one stop was saved twice"
    return ends[0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
@pytest.mark.parametrize("place", ["data", "forward", "backward", "optimizer", "boundary"])
def test_a_signal_in_any_phase_of_a_step_is_answered_at_its_end(
    tmp_path: Path, undisturbed: str, place: str, number: int
) -> None:
    visit = 4 * STEPS_PER_EPOCH + 9 if place == "data" else STEPS_PER_EPOCH + 3
    end = stops(tmp_path / "run", Once(place, visit, send(number)))
    assert end.why == signal.Signals(number).name
    assert STEPS_PER_EPOCH + 2 <= end.step <= STEPS_PER_EPOCH + 4
    assert train(tmp_path / "run") == undisturbed


@pytest.mark.parametrize(("place", "visit"), [("validation", 1), ("validation", 6), ("epoch", 2)])
def test_a_signal_during_validation_completes_the_epoch_first(
    tmp_path: Path, undisturbed: str, place: str, visit: int
) -> None:
    """Cut short, the scheduler would see half a validation; done twice, it would see it twice."""
    end = stops(tmp_path / "run", Once(place, visit, send(signal.SIGTERM)))
    assert end.step in (STEPS_PER_EPOCH, 2 * STEPS_PER_EPOCH)
    assert train(tmp_path / "run") == undisturbed


def test_ctrl_c_commits_and_ends_with_130(tmp_path: Path, undisturbed: str) -> None:
    end = stops(tmp_path / "run", Once("forward", 7, send(signal.SIGINT)), INTERRUPTED)
    assert end.why == "Ctrl-C"
    assert train(tmp_path / "run") == undisturbed


def test_a_storm_of_signals_is_one_stop(tmp_path: Path, undisturbed: str) -> None:
    storm = [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM] * 25
    end = stops(tmp_path / "run", Once("backward", 6, send(*storm)))
    assert end.step == 6
    assert train(tmp_path / "run") == undisturbed


def test_signals_at_every_place_until_the_end_are_one_stop(tmp_path: Path, undisturbed: str) -> None:
    """Also while the state is staged and written: the first one starts that, the others fall into it."""
    count = 0

    def everywhere(place: str) -> None:
        nonlocal count
        count += 1
        if count > 20:
            os.kill(os.getpid(), signal.SIGTERM)

    stops(tmp_path / "run", everywhere)
    assert train(tmp_path / "run") == undisturbed


def test_a_signal_while_a_save_is_being_written(tmp_path: Path, undisturbed: str) -> None:
    def in_persist(run: holdfast.Run) -> None:
        saver = run._session.saves.saver  # type: ignore[union-attr]
        write, sent = saver._write, []

        def slow(*arguments):  # type: ignore[no-untyped-def]
            if not sent:
                sent.append(True)
                # From the worker: Python runs the handler in the training thread, in the middle of anything.
                os.kill(os.getpid(), signal.SIGTERM)
            return write(*arguments)

        saver._write = slow

    with pytest.raises(SystemExit) as left:
        train(tmp_path / "run", hooks=in_persist)
    assert left.value.code == PLEASE_RUN_AGAIN
    assert train(tmp_path / "run") == undisturbed


def test_stopping_again_and_again_gives_the_same_bits(tmp_path: Path, undisturbed: str) -> None:
    """One step per life, as under a scheduler that takes the machine back all the time."""
    for _ in range(EPOCHS * STEPS_PER_EPOCH - 1):
        with pytest.raises(SystemExit):
            train(tmp_path / "run", Once("forward", 1, send(signal.SIGTERM)))
    assert train(tmp_path / "run") == undisturbed


def test_a_signal_in_the_last_moment_does_not_undo_a_finished_run(tmp_path: Path, undisturbed: str) -> None:
    assert train(tmp_path / "run", Once("epoch", EPOCHS, send(signal.SIGTERM))) == undisturbed
    assert [e.how for e in read_events(tmp_path / "run") if isinstance(e, RunEnded)] == ["finished"]


def test_on_stop_return_ends_the_loops_and_lets_the_script_go_on(tmp_path: Path, undisturbed: str) -> None:
    seen = []
    digest = train(
        tmp_path / "run",
        Once("forward", 5, send(signal.SIGTERM)),
        on_stop="return",
        hooks=lambda run: seen.append(run),
    )
    assert digest != undisturbed
    assert seen[0].step == 5
    assert train(tmp_path / "run") == undisturbed


def test_nothing_behind_the_loop_runs_when_it_was_stopped(tmp_path: Path) -> None:
    behind = []

    def script() -> None:
        with holdfast.Run(tmp_path / "run", model=torch.nn.Linear(1, 1)) as run:
            for step in run.steps(10):
                if step == 3:
                    os.kill(os.getpid(), signal.SIGTERM)
            behind.append("took the half-trained model for the result")

    with pytest.raises(Stopped):
        script()
    assert behind == []
    assert holdfast.checkpoints(tmp_path / "run")[0].step == 4


def test_a_loop_of_the_users_own_is_stopped_too(tmp_path: Path) -> None:
    def script() -> None:
        with holdfast.Run(tmp_path / "run", model=torch.nn.Linear(1, 1)) as run:
            while True:
                if run.step == 3:
                    os.kill(os.getpid(), signal.SIGTERM)
                run.end_step()

    with pytest.raises(Stopped):
        script()
    assert holdfast.checkpoints(tmp_path / "run")[0].step == 4


def test_gradients_that_are_being_accumulated_are_finished_first(tmp_path: Path) -> None:
    """In between there is nothing whole to save."""

    def script(*, until: int | None) -> torch.Tensor:
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.Adam(model.parameters())
        with holdfast.Run(tmp_path / f"run-{until}", model=model, optimizer=optimizer) as run:
            for step in run.steps(12):
                model(torch.full((2, 3), float(step))).sum().backward()
                if step == until:
                    os.kill(os.getpid(), signal.SIGTERM)
                if step % 4 == 3:
                    optimizer.step()
                    optimizer.zero_grad()
                run.end_step()
        return model.weight.detach().clone()

    with pytest.raises(Stopped):
        script(until=5)
    assert holdfast.checkpoints(tmp_path / "run-5")[0].step == 8
    os.rename(tmp_path / "run-5", tmp_path / "run--1")
    assert torch.equal(script(until=-1), script(until=None))


def test_a_stop_whose_last_save_failed_does_not_promise_a_checkpoint(tmp_path: Path) -> None:
    def full(run: holdfast.Run) -> None:
        store = run._session._store  # type: ignore[union-attr]

        def begin(name: str, need_bytes: int) -> None:
            raise StoreFull("no space left")

        store.begin = begin  # type: ignore[method-assign]

    with pytest.raises(SystemExit) as left:
        train(tmp_path / "run", Once("forward", 2, send(signal.SIGTERM)), hooks=full)
    assert left.value.code == STOPPED_UNSAVED


def test_handlers_of_the_script_come_back_and_its_own_usr1_is_left_alone(tmp_path: Path) -> None:
    heard = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
    term, interrupt = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    try:
        train(tmp_path / "run", Once("forward", 2, send(signal.SIGUSR1)), epochs=1)
        assert heard == [signal.SIGUSR1]
        assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == (term, interrupt)
    finally:
        signal.signal(signal.SIGUSR1, before)


class Announced:
    """A provider that says one thing as soon as it may."""

    name, poll_seconds = "test", 0.001

    def __init__(self, notice: Notice) -> None:
        self.notice, self.may_speak, self.heard = notice, threading.Event(), threading.Event()

    def look(self) -> Notice | None:
        if not self.may_speak.wait(0.01):
            return None
        self.heard.set()
        return self.notice

    def close(self) -> None:
        pass

    def speak(self) -> None:
        self.may_speak.set()
        self.heard.wait(30)
        # Asked once more: then the poller has taken the first answer in.
        self.heard.clear()
        self.heard.wait(30)


def test_a_notice_that_the_machine_goes_stops_the_run(tmp_path: Path, undisturbed: str) -> None:
    source = Announced(Notice("test", "terminates", True))
    with pytest.raises(SystemExit) as left:
        train(tmp_path / "run", Once("forward", 6, source.speak), spot=source)
    assert left.value.code == PLEASE_RUN_AGAIN
    events = read_events(tmp_path / "run")
    assert [event.why for event in events if isinstance(event, RunEnded)] == ["notice: test: terminates"]
    assert holdfast.checkpoints(tmp_path / "run")[0].step == 6
    assert train(tmp_path / "run") == undisturbed


def test_advice_to_move_only_adds_a_save(tmp_path: Path, undisturbed: str) -> None:
    source = Announced(Notice("test", "may go soon", False))
    assert train(tmp_path / "run", Once("forward", 7, source.speak), spot=source) == undisturbed
    saves = [event for event in read_events(tmp_path / "run") if isinstance(event, SaveCommitted)]
    assert (7, "test: may go soon") in [(save.step, save.reason) for save in saves]
