"""The loops of a run over its loaders, stopped and started again in one process."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from noisy_samples import Quiet
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import holdfast
from holdfast.data.audit import audit_run
from holdfast.errors import SetupError


class Killed(Exception):
    """Stands for a crash right behind a step boundary."""


def train(folder: Path, body: Any, *, kill_at: int | None = None) -> None:
    """Run `body(run, step)` where `step()` is one optimizer step and its boundary; a save at every
    boundary."""
    if not folder.exists():
        torch.manual_seed(1)  # a run that goes on has its streams from the checkpoint
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(run: Any) -> None:
        model(torch.ones(1)).backward()
        optimizer.step()
        optimizer.zero_grad()
        run.end_step()
        if run.step == kill_at:
            run.save_now("before the kill").wait()
            raise Killed

    try:
        run = holdfast.Run(folder, model=model, optimizer=optimizer, every=1, audit_data=True, spot="off")
        with run:
            body(run, step)
    except Killed:
        assert kill_at is not None


@pytest.mark.parametrize("kill_at", [1, 3, 4, 5, 6, 10])
def test_a_validation_inside_an_epoch_is_whole_after_a_restart(tmp_path: Path, kill_at: int) -> None:
    loader, valid = DataLoader(Quiet(20), 4, shuffle=True), DataLoader(Quiet(7), 2)
    trained: dict[int, list[int]] = {}
    validated: dict[int, int] = {}

    def body(run: Any, step: Any) -> None:
        for _ in run.epochs(2):
            for batch in run.batches(loader, name="train"):
                trained[run.step] = batch.tolist()
                # In front of the step: what follows `end_step` is not done again after a restart.
                if run.step % 2 == 0:
                    validated[run.step] = sum(len(b) for b in run.batches(valid, name="valid"))
                step(run)

    train(tmp_path / "killed", body, kill_at=kill_at)
    train(tmp_path / "killed", body)
    assert validated == {number: 7 for number in range(0, 10, 2)}
    pieced, trained = trained, {}
    train(tmp_path / "alone", body)
    assert pieced == trained
    report = audit_run(tmp_path / "killed")
    assert report.ok, report.violations


def test_two_training_sets_have_their_own_positions(tmp_path: Path) -> None:
    first, second = DataLoader(Quiet(24), 4, shuffle=True), DataLoader(Quiet(12), 2, shuffle=True)
    seen: dict[int, tuple[list[int], list[int]]] = {}

    def body(run: Any, step: Any) -> None:
        for _ in run.epochs(2):
            pairs = zip(run.batches(first, name="first"), run.batches(second, name="second"), strict=True)
            for one, other in pairs:
                seen[run.step] = (one.tolist(), other.tolist())
                step(run)

    train(tmp_path / "killed", body, kill_at=4)
    train(tmp_path / "killed", body, kill_at=8)
    train(tmp_path / "killed", body)
    pieced, seen = dict(seen), {}
    train(tmp_path / "alone", body)
    assert pieced == seen
    assert audit_run(tmp_path / "killed").ok


def test_a_loop_of_steps_over_a_small_loader_goes_round_exactly(tmp_path: Path) -> None:
    loader = DataLoader(Quiet(10), 3, shuffle=True)
    seen: dict[int, list[int]] = {}

    def body(run: Any, step: Any) -> None:
        for batch in run.steps(11, over=loader):
            seen[run.step] = batch.tolist()
            step(run)

    for kill_at in (2, 4, 7, 8):
        train(tmp_path / "killed", body, kill_at=kill_at)
    train(tmp_path / "killed", body)
    pieced, seen = dict(seen), {}
    train(tmp_path / "alone", body)
    assert pieced == seen
    report = audit_run(tmp_path / "killed")
    assert report.ok, report.violations
    assert [p.samples for p in report.passes if p.finished] == [10, 10]


class Endless(IterableDataset[int]):
    """Numbers without end or length, with a state."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self):
        while True:
            self.at += 1
            yield self.at - 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loop_of_steps_over_an_endless_loader_repeats_nothing(tmp_path: Path, workers: int) -> None:
    seen: dict[int, list[int]] = {}

    def body(run: Any, step: Any) -> None:
        loader = DataLoader(Endless(), 2, num_workers=workers)
        for batch in run.steps(9, over=loader):
            seen[run.step] = batch.tolist()
            step(run)

    for kill_at in (1, 4, 6):
        train(tmp_path, body, kill_at=kill_at)
    train(tmp_path, body)
    assert seen == {step: [2 * step, 2 * step + 1] for step in range(9)}
    assert audit_run(tmp_path).ok


def test_a_loop_of_steps_over_nothing_is_refused(tmp_path: Path) -> None:
    def body(run: Any, step: Any) -> None:
        for _ in run.steps(3, over=DataLoader([], 2)):
            pass

    with pytest.raises(SetupError, match="without batches"):
        train(tmp_path, body)


KILLS = [2, 5, 8, 11]


def exactly_once(folder: Path, body: Any, kill_at: int, seen: dict[int, list[int]]) -> None:
    """Killed and taken up again, `body` notes in `seen` by step what an undisturbed run notes."""
    train(folder / "killed", body, kill_at=kill_at)
    train(folder / "killed", body)
    pieced = dict(seen)
    seen.clear()
    train(folder / "alone", body)
    assert pieced == seen
    report = audit_run(folder / "killed")
    assert report.ok, report.violations


@pytest.mark.parametrize("name", [None, "train"])
@pytest.mark.parametrize("kill_at", KILLS)
def test_a_loader_made_anew_for_every_epoch_is_the_same_loader(
    tmp_path: Path, kill_at: int, name: str | None
) -> None:
    seen: dict[int, list[int]] = {}

    def body(run: Any, step: Any) -> None:
        for _ in run.epochs(3):
            for batch in run.batches(DataLoader(Quiet(20), 4, shuffle=True), name=name):
                seen[run.step] = batch.tolist()
                if run.step % 2 == 0:
                    assert sum(len(b) for b in run.batches(DataLoader(Quiet(7), 2))) == 7
                step(run)

    exactly_once(tmp_path, body, kill_at, seen)
    assert len(seen) == 15
    for epoch in range(3):
        samples = (i for step in range(5 * epoch, 5 * epoch + 5) for i in seen[step])
        assert sorted(samples) == list(range(20))


@pytest.mark.parametrize("kill_at", KILLS)
def test_two_loaders_alike_made_anew_for_every_epoch_keep_their_order(tmp_path: Path, kill_at: int) -> None:
    seen: dict[int, list[int]] = {}

    def body(run: Any, step: Any) -> None:
        for _ in run.epochs(2):
            first, second = (DataLoader(Quiet(20), 4, shuffle=True) for _ in range(2))
            for one, other in zip(run.batches(first), run.batches(second), strict=True):
                seen[run.step] = one.tolist() + other.tolist()
                step(run)

    exactly_once(tmp_path, body, min(kill_at, 9), seen)


@pytest.mark.parametrize("kill_at", KILLS)
def test_other_data_in_every_epoch_is_found_again(tmp_path: Path, kill_at: int) -> None:
    seen: dict[int, list[int]] = {}

    def body(run: Any, step: Any) -> None:
        for epoch in run.epochs(3):
            for batch in run.batches(DataLoader(Quiet(16 + 4 * epoch), 4, shuffle=True)):
                seen[run.step] = batch.tolist()
                step(run)

    exactly_once(tmp_path, body, kill_at, seen)
    assert len(seen) == 15


def test_two_loaders_of_one_name_in_one_epoch_are_refused(tmp_path: Path) -> None:
    def other_data(run: Any, step: Any) -> None:
        for _ in run.epochs(1):
            list(run.batches(DataLoader(Quiet(8), 4), name="data"))
            list(run.batches(DataLoader(Quiet(4), 4), name="data"))

    def at_once(run: Any, step: Any) -> None:
        loaders = [DataLoader(Quiet(8), 4) for _ in range(2)]
        list(zip(*(run.batches(each, name="data") for each in loaders), strict=True))

    for body in (other_data, at_once):
        with pytest.raises(SetupError, match=r"two loaders are called 'data'"):
            train(tmp_path / body.__name__, body)


@pytest.mark.parametrize("kill_at", [2, 3, 4, 7])
def test_a_limit_counts_the_batches_before_a_restart(tmp_path: Path, kill_at: int) -> None:
    loader = DataLoader(Quiet(20), 4, shuffle=True)
    seen: dict[int, list[int]] = {}

    def body(run: Any, step: Any) -> None:
        for _ in run.epochs(3):
            for batch in run.batches(loader, limit=3):
                seen[run.step] = batch.tolist()
                step(run)

    exactly_once(tmp_path, body, kill_at, seen)
    assert len(seen) == 9
    assert all(len({i for step in range(e, e + 3) for i in seen[step]}) == 12 for e in (0, 3, 6))


def test_a_limit_may_change_and_may_not_be_zero(tmp_path: Path) -> None:
    loader = DataLoader(Quiet(20), 4, shuffle=True)
    counts = []

    def body(run: Any, step: Any) -> None:
        for epoch in run.epochs(4):
            counts.append(len(list(run.batches(loader, limit=[2, None, 5, 4][epoch]))))
        with pytest.raises(SetupError, match=r"limit=0 leaves no batches"):
            next(iter(run.batches(loader, limit=0)))

    train(tmp_path, body)
    assert counts == [2, 5, 5, 4]
    report = audit_run(tmp_path)
    assert report.ok, report.violations


def drawn(run: Any) -> tuple[float, float, float]:
    return torch.rand(()).item(), random.random(), float(np.random.rand())


@pytest.mark.parametrize("kill_at", [2, 5, 6, 9])
def test_what_a_script_seeds_or_draws_in_front_of_its_loop_changes_nothing(
    tmp_path: Path, kill_at: int
) -> None:
    loader, valid = DataLoader(Quiet(20), 4, shuffle=True), DataLoader(Quiet(7), 2)
    seen: dict[int, Any] = {}

    def body(run: Any, step: Any) -> None:
        torch.rand(64)  # noise to look at pictures with
        for epoch in run.epochs(2):
            for module in (torch.random, random):
                getattr(module, "manual_seed", getattr(module, "seed", None))(epoch)
            np.random.seed(epoch)
            for _ in run.batches(valid):
                torch.rand(1)
            for _ in run.batches(loader, name="train"):
                seen[run.step] = drawn(run)
                step(run)
            seen[-1 - epoch] = drawn(run)

    torch.manual_seed(1)
    train(tmp_path / "killed", body, kill_at=kill_at)
    torch.manual_seed(2)
    train(tmp_path / "killed", body)
    pieced = dict(seen)
    seen.clear()
    torch.manual_seed(1)
    train(tmp_path / "alone", body)
    assert pieced == seen
    assert len(seen) == 12


@pytest.mark.parametrize("kill_at", [1, 4])
def test_what_a_script_draws_in_front_of_counted_steps_changes_nothing(tmp_path: Path, kill_at: int) -> None:
    seen: dict[int, Any] = {}

    def body(run: Any, step: Any) -> None:
        torch.rand(64)
        for number in run.steps(6):
            seen[number] = drawn(run)
            step(run)

    def seeded(folder: str, **options: Any) -> None:
        torch.manual_seed(1)
        np.random.seed(1)
        random.seed(1)
        train(tmp_path / folder, body, **options)

    seeded("killed", kill_at=kill_at)
    seeded("killed")
    pieced = dict(seen)
    seen.clear()
    seeded("alone")
    assert pieced == seen
