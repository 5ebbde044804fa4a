"""Loops as people write them: indices, sums, epochs' ends, wrappers, persistent workers."""

from __future__ import annotations

import gc
import os
import queue
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import holdfast
from holdfast.data.audit import audit_run
from holdfast.errors import IncompatibleState


class Killed(Exception):
    """Stands for a crash."""


class Work:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(2, 1)
        self.optimizer: Any = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.loader = DataLoader(TensorDataset(torch.arange(24.0).view(12, 2)), 2, shuffle=True)

    def step(self, x: torch.Tensor) -> float:
        loss = self.model(x).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()

    def run(self, path: Path, **options: Any) -> holdfast.Run:
        tracked = {"model": self.model, "optimizer": self.optimizer}
        return holdfast.Run(path, **{"every": "1 step", "spot": "off", **tracked, **options})


def crash(run: holdfast.Run) -> None:
    run.save_now().wait()
    raise Killed


def test_the_index_of_a_batch_is_that_of_its_epoch_after_a_restart(tmp_path: Path) -> None:
    def body(kill_at: int | None) -> list[tuple[int, int]]:
        work, seen = Work(), []
        try:
            with work.run(tmp_path) as run:
                for epoch in run.epochs(2):
                    loop = run.enumerate(work.loader)
                    assert len(loop) == 6
                    for index, (x,) in loop:
                        seen.append((epoch, index))
                        work.step(x)
                        run.end_step()
                        if run.step == kill_at:
                            crash(run)
        except Killed:
            pass
        return seen

    assert body(4) + body(9) + body(None) == [(e, i) for e in range(2) for i in range(6)]


def test_the_index_begins_where_pythons_own_enumerate_has_it(tmp_path: Path) -> None:
    work = Work()
    with work.run(tmp_path) as run:
        assert [index for index, _ in run.enumerate(work.loader, 1)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("around", ["enumerate", "zip"])
def test_a_counter_around_our_batches_is_noticed_after_a_restart(
    tmp_path: Path, around: str, caplog: pytest.LogCaptureFixture
) -> None:
    def body(kill_at: int | None) -> None:
        work = Work()
        wrap = enumerate if around == "enumerate" else lambda batches: zip(range(99), batches, strict=False)
        try:
            with work.run(tmp_path) as run:
                for _ in run.epochs(2):
                    for _, (x,) in wrap(run.batches(work.loader)):
                        work.step(x)
                        run.end_step()
                        if run.step == kill_at:
                            crash(run)
        except Killed:
            pass

    body(4)
    assert "run.enumerate" not in caplog.text
    body(None)
    assert caplog.text.count("run.enumerate(loader)") == 1


def test_two_passes_zipped_are_not_taken_for_a_counter(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for kill_at in (4, None):
        work, other = Work(), Work().loader
        try:
            with work.run(tmp_path) as run:
                for _ in run.epochs(1):
                    both = zip(run.batches(work.loader, "a"), run.batches(other, "b"), strict=True)
                    for (x,), _ in both:
                        work.step(x)
                        run.end_step()
                        if run.step == kill_at:
                            crash(run)
        except Killed:
            pass
    assert "zip" not in caplog.text


def test_batches_are_like_the_loader(tmp_path: Path) -> None:
    work = Work()
    with work.run(tmp_path) as run:
        batches = run.batches(work.loader)
        assert (len(batches), batches.batch_size, batches.dataset) == (6, 2, work.loader.dataset)
        for _ in range(2):  # one object for all epochs, as a loader is
            assert len(list(batches)) == 6
        first = next(batches)
        assert len([first, *batches]) == 6


class Meter:
    def __init__(self) -> None:
        self.sum, self.count = 0.0, 0

    def add(self, value: float) -> None:
        self.sum, self.count = self.sum + value, self.count + 1


@pytest.mark.parametrize("kill_at", [3, 6, 8])
def test_sums_meters_and_histories_are_those_of_a_run_that_was_not_killed(
    tmp_path: Path, kill_at: int
) -> None:
    def body(path: Path, kill_at: int | None) -> list[Any]:
        work = Work()
        with work.run(path) as run:
            kept = run.remember(history=[], best=float("inf"))
            for epoch in run.epochs(2):
                sums = run.remember(total=0.0, meter=Meter())
                for (x,) in run.batches(work.loader):
                    loss = work.step(x)
                    sums.total += loss
                    sums.meter.add(loss)
                    run.end_step()
                    if run.step == kill_at:
                        crash(run)
                assert sums.meter.count == 6
                kept.best = min(kept.best, sums.total)
                kept.history.append((epoch, sums.total, sums.meter.sum))
            return [kept.best, *kept.history]

    with pytest.raises(Killed):
        body(tmp_path / "killed", kill_at)
    assert body(tmp_path / "killed", None) == body(tmp_path / "alone", None)


def test_remembered_tensors_are_what_they_were_with_their_graph_or_without(tmp_path: Path) -> None:
    def body(path: Path, kill_at: int | None) -> list[Any]:
        work = Work()
        weight = torch.ones(2, requires_grad=True)
        with work.run(path) as run:
            kept = run.remember(ahead=torch.zeros(2), best=1e9, hidden=(torch.zeros(2), [torch.zeros(2)]))
            for _epoch in run.epochs(2):
                for (x,) in run.batches(work.loader):
                    loss = work.step(x)
                    kept.ahead = kept.ahead + loss
                    kept.best = torch.minimum(torch.as_tensor(kept.best), torch.tensor(loss))
                    hidden = kept.hidden[0].detach() * weight + loss  # as a recurrent net hands it on
                    kept.hidden = (hidden, [hidden * 2])
                    run.end_step()
                    if run.step == kill_at:
                        crash(run)
            tensors = [kept.ahead, kept.best, kept.hidden[0], kept.hidden[1][0]]
            return [tensor.tolist() for tensor in tensors]

    with pytest.raises(Killed):
        body(tmp_path / "killed", 8)
    assert body(tmp_path / "killed", None) == body(tmp_path / "alone", None)


def test_an_object_that_began_as_none_is_refused_in_words(tmp_path: Path) -> None:
    work = Work()
    with work.run(tmp_path) as run:
        run.remember(meter=None).meter = Meter()
        work.step(torch.ones(2, 2))
        run.end_step()
    with work.run(tmp_path) as run, pytest.raises(IncompatibleState, match="object of the same class"):
        run.remember(meter=None)


@pytest.mark.parametrize("kill_at", [3, 6, 8])
def test_what_belongs_to_an_epochs_beginning_is_done_once(tmp_path: Path, kill_at: int) -> None:
    begun = []
    for kill in (kill_at, None):
        work = Work()
        try:
            with work.run(tmp_path) as run:
                for epoch in run.epochs(3):
                    if not run.inside_epoch:
                        begun.append(epoch)
                    for (x,) in run.batches(work.loader):
                        work.step(x)
                        run.end_step()
                        if run.step == kill:
                            crash(run)
                    assert not run.inside_epoch or epoch == begun[-1]
        except Killed:
            pass
    assert begun == [0, 1, 2]


def test_the_tail_of_an_epoch_is_not_done_again_on_a_state_that_has_it(tmp_path: Path) -> None:
    def body(path: Path, kill_in: int | None) -> list[float]:
        work, rates = Work(), []
        schedule = torch.optim.lr_scheduler.StepLR(work.optimizer, 1, 0.5)
        with work.run(path, every="1000 steps", keep="lowest 3 of loss", schedule=schedule) as run:
            for epoch in run.epochs(4):
                for (x,) in run.batches(work.loader):
                    work.step(x)
                    run.end_step()
                schedule.step()
                kept = [p.detach().clone() for p in work.model.parameters()]
                with torch.no_grad():  # averaged weights stand in for the model
                    for p in work.model.parameters():
                        p.zero_()
                run.report(loss=10.0 - epoch)
                with torch.no_grad():
                    for p, value in zip(work.model.parameters(), kept, strict=True):
                        p.copy_(value)
                if epoch == kill_in:
                    raise Killed
                rates.append(schedule.get_last_lr()[0])
        return [*rates, *(float(p.detach().sum()) for p in work.model.parameters())]

    with pytest.raises(Killed):
        body(tmp_path / "killed", 2)
    alone = body(tmp_path / "alone", None)
    pieced = body(tmp_path / "killed", None)
    assert pieced == alone[-len(pieced) :]


@pytest.mark.parametrize("loop", ["batches", "without end_step", "before end_step", "steps"])
def test_a_report_inside_an_epoch_saves_when_the_loop_comes_round(tmp_path: Path, loop: str) -> None:
    """Averaged weights stand in for the model while it is validated, and the scheduler steps behind that."""

    def body(path: Path, kill_behind: int | None) -> list[Any]:
        work, seen = Work(), []
        schedule = torch.optim.lr_scheduler.StepLR(work.optimizer, 1, 0.5)
        with work.run(path, every="1000 steps", keep="latest 9, lowest 3 of loss", schedule=schedule) as run:

            def one(x: torch.Tensor) -> None:
                work.step(x)
                if loop in ("batches", "steps"):
                    run.end_step()
                made = run.step + (loop in ("without end_step", "before end_step"))
                if made % 4 == 0:
                    with torch.no_grad():
                        kept = [p.clone() for p in work.model.parameters()]
                        work.model.weight.zero_()
                        run.report(loss=10.0 - made)
                        for p, value in zip(work.model.parameters(), kept, strict=True):
                            p.copy_(value)
                    schedule.step()
                if loop == "before end_step":
                    run.end_step()
                seen.append((made, schedule.get_last_lr()[0], float(work.model.weight.detach().sum())))

            if loop == "steps":
                for step in run.steps(12):
                    if step == kill_behind:
                        raise Killed
                    one(torch.full((2, 2), float(step)))
            else:
                for _ in run.epochs(2):
                    for (x,) in run.batches(work.loader):
                        if run.step == kill_behind:
                            raise Killed
                        one(x)
        return seen

    with pytest.raises(Killed):
        body(tmp_path / "killed", 6)
    [best] = [c for c in holdfast.checkpoints(tmp_path / "killed") if "loss" in c.metrics]
    assert (best.step, best.metrics["loss"]) == (4, 6.0)
    alone = body(tmp_path / "alone", None)
    pieced = body(tmp_path / "killed", None)
    assert len(pieced) == 8
    assert pieced == alone[-len(pieced) :]


def test_what_is_reported_at_the_last_step_of_all_is_kept(tmp_path: Path) -> None:
    work = Work()
    with work.run(tmp_path, every="3 steps", keep="latest 9, lowest of val") as run:
        for (x,) in run.batches(work.loader):
            work.step(x)
            run.end_step()
            if run.step == 3:
                run.report(val=0.5)
                break
    assert 0.5 in [c.metrics.get("val") for c in holdfast.checkpoints(tmp_path)]


def test_a_break_behind_a_step_neither_costs_nor_adds_one(tmp_path: Path) -> None:
    work = Work()
    with work.run(tmp_path) as run:
        for _ in run.epochs(3):
            for number, (x,) in enumerate(run.batches(work.loader)):
                work.step(x)
                if number == 1:
                    break
        assert run.step == 6


def test_validation_inside_a_loop_without_end_step_adds_no_steps(tmp_path: Path) -> None:
    work = Work()
    valid = DataLoader(TensorDataset(torch.ones(6, 2)), 2)
    with work.run(tmp_path) as run:
        for _ in run.epochs(2):
            for (x,) in run.batches(work.loader):
                work.step(x)
                for _ in run.batches(valid):
                    pass
        assert run.step == 12


def by_range(run: holdfast.Run, work: Work) -> Any:
    for _ in range(3):
        yield from run.batches(work.loader)


def by_while(run: holdfast.Run, work: Work) -> Any:
    done = 0
    while done < 18:
        for batch in run.batches(work.loader):
            yield batch
            done += 1


def by_the_run(run: holdfast.Run, work: Work) -> Any:
    while run.step < 18:
        yield from run.batches(work.loader)


@pytest.mark.parametrize(("loop", "is_said"), [(by_range, True), (by_while, True), (by_the_run, False)])
def test_a_loop_that_would_make_too_many_steps_after_a_restart_is_noticed(
    tmp_path: Path, loop: Any, is_said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    for kill_at in (8, None):
        work = Work()
        try:
            with work.run(tmp_path) as run:
                for (x,) in loop(run, work):
                    work.step(x)
                    run.end_step()
                    if run.step == kill_at:
                        crash(run)
                    if run.step == 12:
                        break
        except Killed:
            assert "more steps than asked" not in caplog.text
    assert ("more steps than asked" in caplog.text) is is_said


@pytest.mark.parametrize("begin", [None, "run.step", "run.steps"])
def test_a_range_around_steps_without_our_data_is_noticed_after_a_restart(
    tmp_path: Path, begin: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    def one(run: holdfast.Run) -> None:
        work.step(torch.randn(2, 2))
        run.end_step()
        if kill_at == run.step:
            crash(run)

    for kill_at in (3, None):
        work = Work()
        try:
            with work.run(tmp_path) as run:
                if begin is None:
                    for _ in range(6):
                        work.step(torch.randn(2, 2))
                        run.end_step()
                        if kill_at == run.step:
                            crash(run)
                elif begin == "run.step":
                    for _ in range(run.step, 6):
                        one(run)
                else:
                    for _ in run.steps(6):
                        one(run)
        except Killed:
            assert "more steps than asked" not in caplog.text
    assert ("more steps than asked" in caplog.text) is (begin is None)


class Wrapper(torch.optim.Optimizer):
    """As Accelerate's: an Optimizer by class, whose moments and steps are another one's."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    state = property(lambda self: self.optimizer.state, lambda self, value: None)
    param_groups = property(lambda self: self.optimizer.param_groups, lambda self, value: None)

    def step(self) -> None:  # type: ignore[override]
        self.optimizer.step()

    def zero_grad(self) -> None:  # type: ignore[override]
        self.optimizer.zero_grad()


def test_the_optimizer_inside_a_wrapper_is_the_one_that_is_restored(tmp_path: Path) -> None:
    def body(path: Path, kill_at: int | None) -> list[float]:
        work = Work()
        work.optimizer = Wrapper(work.optimizer)
        losses = []
        with work.run(path) as run:
            for _ in run.epochs(2):
                for (x,) in run.batches(work.loader):
                    losses.append(work.step(x))
                    run.end_step()
                    if run.step == kill_at:
                        crash(run)
        return losses

    with pytest.raises(Killed):
        body(tmp_path / "killed", 5)
    assert body(tmp_path / "killed", None) == body(tmp_path / "alone", None)[5:]


PERSISTENT = """
import multiprocessing, os, signal, sys, torch, holdfast
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    torch.set_num_threads(1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data = TensorDataset(torch.ones(8, 4))
    loader = DataLoader(data, batch_size=2, num_workers=1, persistent_workers=sys.argv[2] != "held")
    try:
        with holdfast.Run(sys.argv[1], model=model, optimizer=optimizer, spot="off") as run:
            for epoch in run.epochs(2):
                held = iter(run.batches(loader))  # outlives the run
                for (inputs,) in held:
                    if sys.argv[2] == "held" and run.step == 2:
                        break
                    model(inputs).sum().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    run.end_step()
                    if run.step == 6 and sys.argv[2] == "stopped":
                        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        print("left", len(multiprocessing.active_children()), flush=True)
"""


@pytest.mark.parametrize("how", ["finished", "stopped", "held"])
def test_workers_end_with_the_run_and_do_not_keep_the_process(tmp_path: Path, how: str) -> None:
    """Left to the interpreter's exit they get SIGTERM, which they outlive for a minute."""
    (tmp_path / "script.py").write_text(PERSISTENT)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "run"), how],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == (75 if how == "stopped" else 0), done.stderr
    assert "left 0" in done.stdout


def test_a_validation_loader_with_persistent_workers_leaves_the_resumed_run_the_same(tmp_path: Path) -> None:
    def body(path: Path, kill_at: int | None) -> dict[int, float]:
        work, seen = Work(), {}
        data = TensorDataset(torch.ones(6, 2))
        valid = DataLoader(data, 2, num_workers=1, persistent_workers=True)
        try:
            with work.run(path) as run:
                for _ in run.epochs(3):
                    for _ in run.batches(valid, "valid"):
                        pass
                    for (x,) in run.batches(work.loader, "train"):
                        seen[run.step] = work.step(x + torch.rand(()))
                        run.end_step()
                        if run.step == kill_at:
                            crash(run)
        except Killed:
            pass
        return seen

    pieced = body(tmp_path / "killed", 8) | body(tmp_path / "killed", None)
    assert pieced == body(tmp_path / "alone", None)


def test_a_loader_per_rollout_is_trained_on_after_a_restart_and_not_kept_alive(tmp_path: Path) -> None:
    """As PPO does it: new data and a new loader for every rollout."""
    trained: dict[int, int] = {}
    alive: list[weakref.ref[Any]] = []
    for kill_at in (6, None):
        work = Work()
        try:
            with work.run(tmp_path) as run:
                while run.step < 18:
                    rollout = TensorDataset(torch.rand(12, 2))
                    alive.append(weakref.ref(rollout))
                    before = run.step
                    for _ in range(2):
                        for (x,) in run.batches(DataLoader(rollout, 4, shuffle=True)):
                            work.step(x)
                            run.end_step()
                            if run.step == kill_at:
                                crash(run)
                    trained[before] = run.step - before
                    del rollout
                    gc.collect()
                    assert sum(ref() is not None for ref in alive) <= 1
        except Killed:
            pass
    assert trained[6] == 6
    assert set(trained.values()) == {6}


@pytest.mark.parametrize("what", ["target", "not a number", "frozen by mistake"])
def test_only_weights_that_should_have_changed_are_called_stale(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    work = Work()
    tracked: dict[str, Any] = {}
    if what == "target":
        tracked = {"model": nn.Linear(2, 1)}  # synchronised now and then; the trained one is not tracked
    if what == "not a number":
        nn.init.constant_(work.model.weight, float("nan"))
    if what == "frozen by mistake":
        work.optimizer.param_groups[0]["lr"] = 0.0
    with work.run(tmp_path, **tracked) as run:
        for _ in range(3):
            work.step(torch.ones(2, 2))
            run.end_step()
            run.save_now().wait()
    assert ("has exactly the weights" in caplog.text) is (what == "frozen by mistake")


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kill_at", [5, 8, 12])
def test_batches_that_a_loop_has_fetched_ahead_come_again(tmp_path: Path, kill_at: int, workers: int) -> None:
    """As a prefetcher does: the next batch is fetched before the step on this one."""
    trained: dict[int, list[float]] = {}

    def body(path: Path, kill: int | None) -> None:
        work = Work()
        data = TensorDataset(torch.arange(24.0).view(12, 2))
        loader = DataLoader(data, 2, shuffle=True, num_workers=workers)
        with work.run(path, audit_data=True) as run:
            for _ in run.epochs(3):
                batches = iter(run.batches(loader))
                ahead = next(batches, None)
                while ahead is not None:
                    (x,) = ahead
                    ahead = next(batches, None)
                    trained[run.step] = x[:, 0].tolist()
                    work.step(x)
                    run.end_step()
                    if run.step == kill:
                        crash(run)

    with pytest.raises(Killed):
        body(tmp_path / "killed", kill_at)
    body(tmp_path / "killed", None)
    pieced = dict(trained)
    trained.clear()
    body(tmp_path / "alone", None)
    assert pieced == trained
    report = audit_run(tmp_path / "killed")
    assert report.ok, [*report.violations, *report.unknown]


@pytest.mark.parametrize("ahead", [True, False])
def test_the_audit_does_not_say_ok_where_it_cannot_know_what_was_fetched_ahead(
    tmp_path: Path, ahead: bool
) -> None:
    for kill in (2, None):
        work = Work()
        try:
            with work.run(tmp_path, audit_data=True) as run:
                for _ in run.epochs(2):
                    batches = iter(run.batches(work.loader))
                    waiting = [next(batches)] if ahead else []
                    while True:
                        waiting += [batch for batch in [next(batches, None)] if batch is not None]
                        if not waiting:
                            break
                        (x,) = waiting.pop(0)
                        work.step(x)
                        run.end_step()
                        if run.step == kill:
                            crash(run)
        except Killed:
            pass
    report = audit_run(tmp_path)
    assert report.violations == []
    assert report.ok is not ahead
    assert [said.split(":")[0] for said in report.unknown] == (["loader0"] if ahead else [])


@pytest.mark.parametrize("kill_at", [5, 8, 12])
@pytest.mark.parametrize("opened_in", ["thread", "loop"])
def test_batches_that_another_thread_reads_come_once_and_in_order(
    tmp_path: Path, kill_at: int, opened_in: str
) -> None:
    """As a background prefetcher does: a thread reads, a short queue lies between it and training."""
    trained: dict[int, list[float]] = {}

    def body(path: Path, kill: int | None) -> None:
        work = Work()
        end = object()
        with work.run(path, audit_data=True) as run:
            for _ in run.epochs(3):
                waiting: queue.Queue[Any] = queue.Queue(2)
                batches: Any = run.batches(work.loader)
                batches = iter(batches) if opened_in == "loop" else batches

                def read(batches: Any = batches, waiting: queue.Queue[Any] = waiting) -> None:
                    for batch in batches:
                        waiting.put(batch)
                    waiting.put(end)

                reader = threading.Thread(target=read, daemon=True)
                reader.start()
                while (batch := waiting.get()) is not end:
                    trained[run.step] = batch[0][:, 0].tolist()
                    work.step(batch[0])
                    run.end_step()
                    if run.step == kill:
                        crash(run)
                reader.join()

    with pytest.raises(Killed):
        body(tmp_path / "killed", kill_at)
    body(tmp_path / "killed", None)
    pieced = dict(trained)
    trained.clear()
    body(tmp_path / "alone", None)
    assert pieced == trained
    report = audit_run(tmp_path / "killed")
    assert report.violations == []
    assert report.unknown, "how many batches of a queue belong to one step nobody can know"
