"""A failed save is never silent, never kills or hangs training by default, and never poisons the next one."""

import errno
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import holdfast
from holdfast.engine import together
from holdfast.engine.background import Worker
from holdfast.errors import (
    NoValidCheckpoint,
    RestoreError,
    RunInUse,
    SaveError,
    SetupError,
    StoreError,
    StoreFull,
    StoreNotFound,
)
from holdfast.events import RunEnded
from holdfast.stores.journal import read_events
from holdfast.stores.posix import PosixIO
from holdfast.stores.store import CheckpointStore
from holdfast.testing.forwarding_io import ForwardingIO


class Troubled(ForwardingIO):
    """A disk that fails while `trouble` is set: every write, or whatever verbs are named."""

    def __init__(self) -> None:
        super().__init__(PosixIO())
        self.trouble: int | None = None
        self.verbs = ("write_at", "preallocate", "fsync", "append")
        self.gate: threading.Event | None = None
        self.only_once = False

    def _pass(self, verb: str, call: Any) -> Any:
        if self.gate is not None and verb == "write_at":
            assert self.gate.wait(60)
        trouble = self.trouble
        if trouble is not None and verb in self.verbs:
            if self.only_once:
                self.trouble = None
            raise OSError(trouble, os.strerror(trouble))
        return call()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Troubled:
    disk = Troubled()
    monkeypatch.setattr(together, "CheckpointStore", lambda path, **kw: CheckpointStore(path, io=disk, **kw))
    return disk


class Script:
    def __init__(self, path: Path, **settings: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(3, 3)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        settings = {"every": "1000 steps", **settings}
        self.run = holdfast.Run(path, **settings, model=self.model, opt=self.opt)

    def step(self) -> None:
        self.model(torch.randn(2, 3)).pow(2).sum().backward()
        self.opt.step()
        self.opt.zero_grad()
        self.run.end_step()


def settled(handle: Any) -> Any:
    assert handle.ended_within(60)
    return handle


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EROFS, errno.ESTALE])
def test_a_failure_is_said_at_the_next_boundary_and_training_goes_on(
    tmp_path: Path, disk: Troubled, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    script = Script(tmp_path)
    with script.run as run:
        script.step()
        good = run.save_now().wait()
        disk.trouble = code
        script.step()
        settled(run.save_now())
        assert "failed" not in caplog.text
        script.step()
        assert "the save of step 2 failed" in caplog.text
        assert os.strerror(code) in caplog.text
        disk.trouble = None
        script.step()
        # With fresh state, not with what failed.
        name = run.save_now().wait()
        assert name != good
        weights = {k: v.clone() for k, v in script.model.state_dict().items()}
    newest = holdfast.checkpoints(tmp_path)[0]
    assert newest.step == 4
    assert all(torch.equal(v, holdfast.load_weights(tmp_path, step=4)[k]) for k, v in weights.items())
    assert good in {c.name for c in holdfast.checkpoints(tmp_path)}


def test_on_save_error_raise_raises_at_the_next_boundary(tmp_path: Path, disk: Troubled) -> None:
    script = Script(tmp_path, on_save_error="raise")

    def train() -> None:
        with script.run as run:
            script.step()
            disk.trouble = errno.EIO
            settled(run.save_now())
            script.step()

    with pytest.raises(StoreError, match=r"Input/output error"):
        train()


def test_waiting_for_a_failed_save_raises_why(tmp_path: Path, disk: Troubled) -> None:
    script = Script(tmp_path)
    with script.run as run:
        script.step()
        disk.trouble = errno.ENOSPC
        with pytest.raises(StoreFull, match=r"No space left"):
            run.save_now().wait()
        disk.trouble = None
    assert holdfast.checkpoints(tmp_path)[0].step == 1


@pytest.mark.parametrize("mode", ["warn", "raise"])
def test_a_run_whose_last_state_is_not_saved_does_not_end_well(
    tmp_path: Path, disk: Troubled, caplog: pytest.LogCaptureFixture, mode: Any
) -> None:
    script = Script(tmp_path, on_save_error=mode)

    def train() -> None:
        with script.run:
            script.step()
            disk.trouble = errno.EIO

    with pytest.raises(StoreError, match=r"Input/output"):
        train()
    assert "the last state (step 1) is not saved" in caplog.text
    assert holdfast.checkpoints(tmp_path) == []
    ended = [e for e in read_events(str(tmp_path)) if isinstance(e, RunEnded)]
    assert [e.how for e in ended] in ([], ["error"])  # the journal is on the same disk


def test_an_error_outside_the_last_state_is_not_the_runs_own_end(tmp_path: Path, disk: Troubled) -> None:
    """The code behind the block runs if, and only if, the state is saved."""
    script = Script(tmp_path)
    with script.run as run:
        script.step()
        disk.trouble = errno.EIO
        settled(run.save_now())
        script.step()
        disk.trouble = None
    assert holdfast.checkpoints(tmp_path)[0].step == 2


def test_a_block_that_is_left_by_sys_exit_is_saved(tmp_path: Path) -> None:
    script = Script(tmp_path)

    def train() -> None:
        with script.run:
            script.step()
            sys.exit()

    with pytest.raises(SystemExit):
        train()
    assert [c.step for c in holdfast.checkpoints(tmp_path)] == [1]


@pytest.mark.parametrize("on_stop", ["exit", "return"])
def test_a_stopped_run_whose_state_is_not_saved_does_not_end_well(
    tmp_path: Path, disk: Troubled, on_stop: Any
) -> None:
    script = Script(tmp_path, on_stop=on_stop)

    def train() -> None:
        with script.run as run:
            for _ in run.steps(9):
                script.step()
                disk.trouble = errno.EIO
                signal.raise_signal(signal.SIGTERM)

    if on_stop == "exit":
        with pytest.raises(SystemExit) as left:
            train()
        assert left.value.code == 1
    else:
        with pytest.raises(StoreError):
            train()


def test_a_save_in_flight_at_the_exit_that_fails_is_taken_again(tmp_path: Path, disk: Troubled) -> None:
    script = Script(tmp_path)
    with script.run as run:
        script.step()
        disk.gate = threading.Event()
        handle = run.save_now()

        # It fails while the block is being left, and the disk is well again for the one that follows.
        disk.trouble, disk.only_once = errno.EIO, True
        helper = threading.Timer(0.05, disk.gate.set)
        helper.start()
    helper.join()
    assert handle.outcome == "failed"
    assert [c.step for c in holdfast.checkpoints(tmp_path)] == [1]


def test_after_an_exception_nothing_is_committed_and_it_passes_through(tmp_path: Path) -> None:
    script = Script(tmp_path)

    def train() -> None:
        with script.run:
            script.step()
            raise ZeroDivisionError("the user's own")

    with pytest.raises(ZeroDivisionError, match=r"the user's own"):
        train()
    assert holdfast.checkpoints(tmp_path) == []
    with script.run:  # and the folder is free again
        pass


def test_a_save_that_was_begun_before_the_exception_is_still_committed(tmp_path: Path) -> None:
    script = Script(tmp_path)

    def train() -> None:
        with script.run as run:
            script.step()
            run.save_now()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()
    assert [c.step for c in holdfast.checkpoints(tmp_path)] == [1]


@pytest.mark.parametrize("steps", [0, 3])
def test_a_disk_that_hangs_is_given_up_after_the_limit(
    tmp_path: Path, disk: Troubled, caplog: pytest.LogCaptureFixture, steps: int
) -> None:
    script = Script(tmp_path, wait_limit=0.3)
    gate, handles = threading.Event(), []

    def train() -> None:
        with script.run as run:
            script.step()
            disk.gate = gate
            handles.append(run.save_now())
            for _ in range(steps):
                script.step()  # training is not held up
            with pytest.raises(SaveError, match=r"not durable after"):
                handles[0].wait()

    with pytest.raises(SaveError, match=r"did not end in time|not durable|no staging memory"):
        train()
    assert "did not end within" in caplog.text
    gate.set()
    assert handles[0].ended_within(60)


@pytest.mark.parametrize("where", ["write", "publish", "begin"])
def test_an_unforeseen_exception_in_the_background_reaches_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    script = Script(tmp_path)
    real = getattr(CheckpointStore, where)
    broken = [True]

    def breaks(self: Any, *args: Any, **kwargs: Any) -> Any:
        if broken and broken.pop():
            raise KeyError("nobody thought of this")
        return real(self, *args, **kwargs)

    monkeypatch.setattr(CheckpointStore, where, breaks)
    with script.run as run:
        script.step()
        with pytest.raises(holdfast.InternalError, match=r"nobody thought of this"):
            run.save_now().wait()
        script.step()
        run.save_now().wait()


def test_a_failing_prune_fails_no_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import holdfast.engine.housekeeping as housekeeping

    def prune(*args: Any, **kwargs: Any) -> Any:
        raise KeyError("a bug in pruning")

    monkeypatch.setattr(housekeeping, "prune", prune)
    script = Script(tmp_path)
    with script.run as run:
        for _ in range(4):
            script.step()
            run.save_now().wait()
    assert len(holdfast.checkpoints(tmp_path)) == 4
    assert "a bug in pruning" in caplog.text


def test_a_streamed_save_waits_for_the_one_in_the_background(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state outgrows its memory: the first save ends in the background, the second is streamed here."""
    import holdfast.engine.housekeeping as housekeeping

    order: list[str] = []
    may_end = threading.Event()
    real_end, real_write = housekeeping.Housekeeping.after_commit, CheckpointStore.write

    def after_commit(*args: Any, **kwargs: Any) -> Any:
        assert may_end.wait(60)
        order.append("ended")
        return real_end(*args, **kwargs)

    def write(self: Any, name: str, source: Any) -> Any:
        order.append("written")
        return real_write(self, name, source)

    monkeypatch.setattr(housekeeping.Housekeeping, "after_commit", after_commit)
    monkeypatch.setattr(CheckpointStore, "write", write)
    script = Script(tmp_path, memory_limit=60_000)
    with script.run as run:
        script.step()
        run.save_now().wait()
        order.append("grows")
        run.extras["big"] = torch.zeros(100_000)
        threading.Timer(0.1, may_end.set).start()
        run.save_now().wait()
        assert order.index("ended") < order.index("written", order.index("grows"))


def test_a_state_dict_that_raises_fails_the_save_and_not_the_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Moody:
        angry = False

        def state_dict(self) -> Any:
            if self.angry:
                raise LookupError("not now")
            return {"x": 1}

        def load_state_dict(self, state: Any) -> None: ...

    moody, model = Moody(), nn.Linear(1, 1)
    with holdfast.Run(tmp_path, every="1 step", model=model, moody=moody) as run:
        moody.angry = True
        run.end_step()
        run.end_step()
        assert "not now" in caplog.text
        moody.angry = False
        run.end_step()
        run.save_now().wait()


def test_a_value_that_appears_later_and_cannot_be_saved_is_said_by_name(
    tmp_path: Path,
) -> None:
    with holdfast.Run(tmp_path, every="1 step", model=nn.Linear(1, 1)) as run:
        run.extras["callback"] = print
        with pytest.raises(SetupError, match=r"run\['extras'\]\['callback'\]"):
            run.end_step()
        del run.extras["callback"]
        run.end_step()


def test_a_background_job_that_raises_does_not_end_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    worker = Worker("holdfast-test")
    done = threading.Event()
    worker.submit(lambda: 1 / 0)
    worker.submit(done.set)
    assert done.wait(30)
    assert worker.close(30)
    assert "division by zero" in caplog.text


def test_several_failures_are_all_heard(
    tmp_path: Path, disk: Troubled, caplog: pytest.LogCaptureFixture
) -> None:
    script = Script(tmp_path)
    with script.run as run:
        disk.trouble = errno.EIO
        script.step()
        settled(run.save_now())
        script.step()
        settled(run.save_now())
        script.step()
        disk.trouble = None
    assert "the save of step 1 failed" in caplog.text
    assert "the save of step 2 failed" in caplog.text


def test_the_second_process_is_told_who_the_first_is(tmp_path: Path) -> None:
    import subprocess
    import sys

    script = Script(tmp_path)
    code = (
        f"import holdfast, torch\nwith holdfast.Run({str(tmp_path)!r}, model=torch.nn.Linear(3, 3)): pass\n"
    )
    with script.run:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode != 0
        assert "RunInUse" in done.stderr
        assert f"pid {os.getpid()}" in done.stderr
        with pytest.raises(RunInUse, match=f"pid {os.getpid()}"):
            Script(tmp_path).run.__enter__()
        script.step()
    assert holdfast.checkpoints(tmp_path)[0].step == 1


# ---- the world


def three_checkpoints(path: Path) -> None:
    script = Script(path, keep=9)
    with script.run as run:
        for _ in range(3):
            script.step()
            run.save_now().wait()


def damage(folder: Path, what: str) -> None:
    newest = holdfast.checkpoints(folder)[0]
    file = newest.files["model.safetensors"]
    if what == "flipped":
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.chmod(0o644)
        file.write_bytes(data)
    elif what == "cut":
        file.chmod(0o644)
        file.write_bytes(file.read_bytes()[:-1])
    elif what == "gone":
        file.unlink()
    else:
        for name in ("MANIFEST", "MANIFEST.2"):
            (file.parent / name).chmod(0o644)
            (file.parent / name).write_bytes(b"rubbish")


@pytest.mark.parametrize("what", ["flipped", "cut", "gone", "manifest"])
def test_a_damaged_newest_checkpoint_is_passed_over_loudly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    three_checkpoints(tmp_path)
    damage(tmp_path, what)
    script = Script(tmp_path)
    with caplog.at_level(logging.WARNING), script.run as run:
        assert run.resumed is not None
        assert run.resumed.step == 2
        assert len(run.resumed.rejected) == 1
        script.step()
    assert "passing over checkpoint" in caplog.text
    assert holdfast.checkpoints(tmp_path)[0].step == 3
    with Script(tmp_path).run as run:
        assert run.resumed is not None
        assert run.resumed.step == 3


def test_a_store_where_nothing_is_whole_is_an_error_and_stays_as_it_is(tmp_path: Path) -> None:
    three_checkpoints(tmp_path)
    for _ in range(3):
        damage(tmp_path, "flipped")
        newest = holdfast.checkpoints(tmp_path)[0]
        newest.files["model.safetensors"].parent.rename(tmp_path / "ckpt" / newest.name.replace("e", "x", 1))
    for place in (tmp_path / "ckpt").iterdir():
        place.rename(place.with_name(place.name.replace("x", "e", 1)))
    before = sorted(p.name for p in (tmp_path / "ckpt").iterdir())
    script = Script(tmp_path)
    weights = script.model.weight.clone()
    with pytest.raises(NoValidCheckpoint, match=r"none is whole"):
        script.run.__enter__()
    assert torch.equal(weights, script.model.weight)
    assert sorted(p.name for p in (tmp_path / "ckpt").iterdir()) == before


def test_a_vanished_folder_is_said_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import shutil

    folder = tmp_path / "run"
    script = Script(folder)

    def train() -> None:
        with script.run as run:
            script.step()
            run.save_now().wait()
            # At once: while files are deleted one by one, the journal may be written.
            folder.rename(tmp_path / "gone")
            shutil.rmtree(tmp_path / "gone")
            script.step()
            settled(run.save_now())
            script.step()
            assert "the save of step 2 failed" in caplog.text

    with pytest.raises(StoreNotFound):
        train()
    assert script.run.step == 3


def test_a_folder_that_comes_back_is_used_again(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    script = Script(folder)
    with script.run as run:
        script.step()
        run.save_now().wait()
        folder.rename(tmp_path / "elsewhere")
        script.step()
        settled(run.save_now())
        (tmp_path / "elsewhere").rename(folder)
        script.step()
        run.save_now().wait()
    assert [c.step for c in holdfast.checkpoints(folder)] == [3, 1]


def test_names_only_grow_over_restarts_and_foreign_files_are_not_checkpoints(tmp_path: Path) -> None:
    """B5 and B6 of the predecessor: ids began at 0 again, and any file could become the newest."""
    names: list[str] = []
    for attempt in range(5):
        for foreign in ("zzz", "model_v_99", "0000-notes.txt"):
            (tmp_path / "ckpt").mkdir(exist_ok=True)
            (tmp_path / "ckpt" / foreign).write_text("not ours")
        script = Script(tmp_path)
        with script.run as run:
            assert run.step == attempt
            script.step()
        names.append(holdfast.checkpoints(tmp_path)[0].name)
    assert names == sorted(names)
    assert len(set(names)) == 5
    assert (tmp_path / "ckpt" / "zzz").read_text() == "not ours"


def test_restoring_from_nothing_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"there is no folder"):
        holdfast.restore(tmp_path / "nowhere", {"model": nn.Linear(1, 1)})
    with pytest.raises(RestoreError, match=r"there is no checkpoint"):
        holdfast.restore(tmp_path, {"model": nn.Linear(1, 1)})
    with pytest.raises(RestoreError, match=r"there is no checkpoint"):
        holdfast.load_weights(tmp_path)
    three_checkpoints(tmp_path / "run")
    with pytest.raises(RestoreError, match=r"no checkpoint of step 7.*there are: 1, 2, 3"):
        holdfast.load_weights(tmp_path / "run", step=7)


def test_objects_that_do_not_fit_are_refused_before_anything_is_touched(tmp_path: Path) -> None:
    three_checkpoints(tmp_path)
    model = nn.Linear(3, 4)
    before = model.weight.clone()
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    run = holdfast.Run(tmp_path, model=model, opt=opt)
    with pytest.raises(holdfast.RestoreError, match=r"\[3, 3\] in the checkpoint and \[4, 3\] here"):
        run.__enter__()
    assert torch.equal(before, model.weight)
    assert run.step == 0
    with Script(tmp_path).run as again:  # the folder was given back
        assert again.resumed is not None
