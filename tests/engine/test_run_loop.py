"""Steps, epochs and batches: what a loop may rely on, with and without end_step."""

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import holdfast
from holdfast.errors import SetupError
from holdfast.testing.torch_loops import Objects, exact


def run_of(path: Path, objects: Objects, **settings: Any) -> holdfast.Run:
    return holdfast.Run(path, **{"every": "1000 steps", **settings}, **objects.tracked)


def uninterrupted(path: Path, epochs: int = 3) -> tuple[list[str], str]:
    objects, losses = Objects(), []
    with run_of(path, objects) as run:
        for _ in run.epochs(epochs):
            for batch in run.batches(objects.loader):
                losses.append(exact(objects.train_on(batch)))
                run.end_step()
    return losses, objects.fingerprint()


@pytest.mark.parametrize("stop_after", [1, 5, 7, 14])
@pytest.mark.parametrize("explicit", [True, False], ids=["end_step", "implicit"])
def test_a_run_that_was_left_and_resumed_is_the_uninterrupted_run(
    tmp_path: Path, stop_after: int, explicit: bool
) -> None:
    expected, fingerprint = uninterrupted(tmp_path / "whole")
    losses: list[str] = []
    objects = Objects()
    with run_of(tmp_path / "parts", objects) as run:
        for _ in run.epochs(3):
            for batch in run.batches(objects.loader):
                losses.append(exact(objects.train_on(batch)))
                if explicit:
                    run.end_step()
                if len(losses) == stop_after:
                    break
            if len(losses) == stop_after:
                break
        assert run.resumed is None
    # Another process: everything is built again, and the streams are somewhere else.
    torch.manual_seed(99)
    objects = Objects(seed=0)
    torch.rand(17)
    with run_of(tmp_path / "parts", objects) as run:
        assert run.resumed is not None
        assert run.step == run.resumed.step == stop_after
        for _ in run.epochs(3):
            for batch in run.batches(objects.loader):
                losses.append(exact(objects.train_on(batch)))
                if explicit:
                    run.end_step()
    assert losses == expected
    assert objects.fingerprint() == fingerprint
    assert run.step == len(expected)


def test_saving_at_every_step_changes_nothing(tmp_path: Path) -> None:
    """G10: with and without holdfast, the same bits."""
    expected_objects, expected = Objects(), []
    for _ in range(3):
        for batch in expected_objects.loader:
            expected.append(exact(expected_objects.train_on(batch)))
    for copy in ("overlapped", "blocking"):
        objects, losses = Objects(), []
        with run_of(tmp_path / copy, objects, every="1 step", copy=copy) as run:
            for _ in run.epochs(3):
                for batch in run.batches(objects.loader):
                    losses.append(exact(objects.train_on(batch)))
                    run.end_step(loss=torch.tensor(1.0))
                    run.save_now().wait()
        assert losses == expected
        assert objects.fingerprint() == expected_objects.fingerprint()


def test_opening_and_closing_a_run_draws_from_no_stream(tmp_path: Path) -> None:
    objects = Objects()
    before = objects.fingerprint()
    with run_of(tmp_path, objects) as run:
        run.save_now().wait()
        assert objects.fingerprint() == before
    assert objects.fingerprint() == before


def test_epochs_and_steps_count_over_all_attempts(tmp_path: Path) -> None:
    seen = []
    for wanted in (1, 1, 3):
        objects = Objects()
        with run_of(tmp_path, objects) as run:
            for epoch in run.epochs(wanted):
                for batch in run.batches(objects.loader):
                    objects.train_on(batch)
                    run.end_step()
                seen.append((epoch, run.step))
    assert seen == [(0, 5), (1, 10), (2, 15)]
    assert (run.epoch, run.step) == (3, 15)


def test_a_finished_run_says_so_and_a_longer_one_goes_on(tmp_path: Path) -> None:
    def progress() -> Any:
        from holdfast.checkpoints.find import committed
        from holdfast.stores.store import CheckpointStore

        manifest = committed(CheckpointStore(tmp_path))[0].manifest
        assert manifest is not None
        return manifest.progress

    for epochs in (1, 2):
        objects = Objects()
        with run_of(tmp_path, objects) as run:
            for _ in run.epochs(epochs):
                for batch in run.batches(objects.loader):
                    objects.train_on(batch)
                    run.end_step()
                    if run.step == 7:
                        run.save_now().wait()
                        assert progress() == {"step": 7, "epoch": 1, "complete": False}
        assert progress() == {"step": 5 * epochs, "epoch": epochs, "complete": True}


def test_steps_counts_to_a_number(tmp_path: Path) -> None:
    for upto, numbers in ((3, [0, 1, 2]), (3, []), (5, [3, 4])):
        objects = Objects()
        batch = next(iter(objects.loader))
        with run_of(tmp_path, objects) as run:
            seen = []
            for number in run.steps(upto):
                objects.train_on(batch)
                seen.append(number)
        assert seen == numbers
        assert run.step == upto


def test_steps_over_a_loader_goes_round_and_round(tmp_path: Path) -> None:
    objects = Objects()
    with run_of(tmp_path, objects) as run:
        count = 0
        for batch in run.steps(12, over=objects.loader):
            objects.train_on(batch)
            run.end_step()
            count += 1
    assert (count, run.step, run.epoch) == (12, 12, 2)


def test_a_loop_left_right_after_the_optimizer_step_counts_it(tmp_path: Path) -> None:
    objects = Objects()
    with run_of(tmp_path, objects) as run:
        for batch in run.batches(objects.loader):
            objects.train_on(batch)
            break
    assert run.step == 1
    assert holdfast.checkpoints(tmp_path)[0].step == 1
    assert torch.equal(holdfast.load_weights(tmp_path)["encode.weight"], objects.model.encode.weight)


class Accumulator:
    """Steps once in four batches."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(2, 1)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.loader = DataLoader(TensorDataset(torch.randn(24, 2)), batch_size=1, shuffle=True)
        self.seen = 0

    def work(self, batch: Any) -> None:
        self.model(batch[0]).sum().backward()
        self.seen += 1
        if self.seen % 4 == 0:
            self.opt.step()
            self.opt.zero_grad()


@pytest.mark.parametrize("explicit", [True, False], ids=["end_step", "implicit"])
def test_nothing_is_saved_while_gradients_accumulate(tmp_path: Path, explicit: bool) -> None:
    acc = Accumulator()
    saved_at = []
    with holdfast.Run(tmp_path, every="1 step", keep=100, model=acc.model, opt=acc.opt) as run:
        for _ in run.epochs(1):
            for batch in run.batches(acc.loader):
                acc.work(batch)
                before = len(holdfast.checkpoints(tmp_path))
                if explicit:
                    run.end_step()
                    for handle in list(run._require_open().saves.saver._pending):
                        handle.wait()
                if len(holdfast.checkpoints(tmp_path)) > before:
                    saved_at.append(acc.seen)
    if explicit:
        assert saved_at
        assert all(seen % 4 == 0 for seen in saved_at)


@pytest.mark.parametrize("explicit", [True, False], ids=["end_step", "implicit"])
def test_a_stop_during_accumulation_waits_for_the_optimizer_step(tmp_path: Path, explicit: bool) -> None:
    acc = Accumulator()
    settings: Any = {"every": "1000 steps", "on_stop": "return"}
    with holdfast.Run(tmp_path, **settings, model=acc.model, opt=acc.opt) as run:
        for _ in run.epochs(1):
            for batch in run.batches(acc.loader):
                acc.work(batch)
                if explicit:
                    run.end_step()
                if acc.seen == 9:
                    signal.raise_signal(signal.SIGTERM)
    assert acc.seen == 12
    resumed = Accumulator()
    with holdfast.Run(tmp_path, every="1000 steps", model=resumed.model, opt=resumed.opt) as run:
        assert torch.equal(resumed.model.weight, acc.model.weight)
        assert sum(1 for _ in run.batches(resumed.loader)) == 12


def test_a_loop_that_ends_within_an_accumulation_is_still_saved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    acc = Accumulator()
    with holdfast.Run(tmp_path, every="1000 steps", model=acc.model, opt=acc.opt) as run:
        for batch in run.batches(acc.loader):
            acc.work(batch)
            run.end_step()
            if acc.seen == 10:
                break
    assert "gradients that no optimizer step has used" in caplog.text
    assert torch.equal(holdfast.load_weights(tmp_path)["weight"], acc.model.weight)


def test_validation_between_epochs_opens_no_step(tmp_path: Path) -> None:
    objects = Objects()
    check = DataLoader(TensorDataset(torch.randn(6, 6)), batch_size=2)
    with run_of(tmp_path, objects) as run:
        for _ in run.epochs(2):
            for batch in run.batches(objects.loader):
                objects.train_on(batch)
                run.end_step()
            for seen, (x,) in enumerate(run.batches(check, name="validation")):
                objects.model(x)
                if seen == 1:
                    break  # gradients of the last training step are still there
    assert run.step == 10
    assert holdfast.checkpoints(tmp_path)[0].step == 10


def test_extras_come_back(tmp_path: Path) -> None:
    objects = Objects()
    with run_of(tmp_path, objects) as run:
        run.extras["best"] = 0.25
        run.extras["table"] = {"a": [1, (2, None)], 3: np.arange(4), "t": torch.ones(2)}
        objects.train_on(next(iter(objects.loader)))
        run.end_step()
    with run_of(tmp_path, Objects()) as run:
        assert run.extras["best"] == 0.25
        assert run.extras["table"]["a"] == [1, (2, None)]
        assert run.extras["table"][3].tolist() == [0, 1, 2, 3]
        assert torch.equal(run.extras["table"]["t"], torch.ones(2))


def test_save_due_asks_and_does_nothing(tmp_path: Path) -> None:
    objects = Objects()
    batch = next(iter(objects.loader))
    with run_of(tmp_path, objects, every="3 steps") as run:
        dues = []
        for _ in range(6):
            objects.train_on(batch)
            dues.append(run.save_due)
            dues.append(run.save_due)
            run.end_step()
    assert run.step == 6
    assert len(holdfast.checkpoints(tmp_path)) == 2


def test_every_n_steps_saves_exactly_there(tmp_path: Path) -> None:
    objects = Objects()
    batch = next(iter(objects.loader))
    with run_of(tmp_path, objects, every="4 steps", keep=50) as run:
        for _ in range(13):
            objects.train_on(batch)
            run.end_step()
            for handle in list(run._require_open().saves.saver._pending):
                handle.wait()
    assert sorted(c.step for c in holdfast.checkpoints(tmp_path)) == [4, 8, 12, 13]


def test_epoch_ends_are_saved_with_their_position(tmp_path: Path) -> None:
    objects = Objects()
    with run_of(tmp_path, objects, every="1 epoch", keep=50) as run:
        for _ in run.epochs(3):
            for batch in run.batches(objects.loader):
                # A save that is still being written would put the next one off.
                for handle in list(run._require_open().saves.saver._pending):
                    handle.wait()
                objects.train_on(batch)
                run.end_step()
    found = sorted((c.step, c.epoch) for c in holdfast.checkpoints(tmp_path))
    assert found == [(5, 1), (10, 2), (15, 3)]


def test_metrics_and_notes_are_in_the_checkpoint(tmp_path: Path) -> None:
    objects = Objects()
    with run_of(tmp_path, objects) as run:
        objects.train_on(next(iter(objects.loader)))
        run.end_step(loss=torch.tensor(0.5), accuracy=torch.tensor(0.75), nan=float("nan"))
        name = run.save_now("by hand", keep="the good one", notes="as sent to the reviewers").wait()
    [found] = [c for c in holdfast.checkpoints(tmp_path) if c.name == name]
    assert found.reason == "by hand"
    assert found.metrics["loss"] == 0.5
    assert found.metrics["accuracy"] == 0.75


def test_a_checkpoint_kept_for_ever_outlives_retention(tmp_path: Path) -> None:
    objects = Objects()
    batch = next(iter(objects.loader))
    with run_of(tmp_path, objects, keep=2) as run:
        for number in range(6):
            objects.train_on(batch)
            run.end_step()
            run.save_now(keep="first" if number == 0 else None).wait()
    assert sorted(c.step for c in holdfast.checkpoints(tmp_path)) == [1, 5, 6]


class Sparse:
    def state_dict(self) -> Any:
        return {"deep": [torch.eye(2).to_sparse()]}

    def load_state_dict(self, state: Any) -> None: ...


class Odd(Sparse):
    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> Any:
        return {"deep": [self.value]}


@pytest.mark.parametrize(
    "value",
    [object(), torch.eye(2).to_sparse(), torch.empty(1, device="meta"), {object(): 1}, np.array([None])],
    ids=["object", "sparse", "meta", "key", "array of objects"],
)
def test_a_value_that_cannot_be_saved_is_an_error_before_training(tmp_path: Path, value: Any) -> None:
    with pytest.raises(SetupError, match=r"odd\['deep'\]\[0\]"):
        holdfast.Run(tmp_path / "run", model=nn.Linear(1, 1), odd=Odd(value))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "settings",
    [
        {"on_save_error": "ignore"}, {"copy": "fast"}, {"seed": -1}, {"seed": True}, {"wait_limit": 0},
        {"keep": 1},
        {"every": "sometimes"}, {"policy": "magic"}, {"memory_limit": "lots"}, {"budget": "300%"},
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_setting_is_an_error_before_training(tmp_path: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(SetupError):
        holdfast.Run(tmp_path / "run", model=nn.Linear(1, 1), **settings)
    assert not (tmp_path / "run").exists()


def test_a_misspelt_setting_is_not_taken_for_an_object(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"no setting 'max_los'; did you mean max_loss=?"):
        holdfast.Run(tmp_path / "run", model=nn.Linear(1, 1), max_los="10 min")
    with pytest.raises(SetupError, match=r"cannot track 'notes'"):
        holdfast.Run(tmp_path / "run", model=nn.Linear(1, 1), notes="mine")


def test_a_run_must_be_open(tmp_path: Path) -> None:
    run = holdfast.Run(tmp_path, model=nn.Linear(1, 1))
    for call in (
        run.end_step,
        run.save_now,
        lambda: run.batches([]),
        lambda: run.epochs(1),
        lambda: run.save_due,
    ):
        with pytest.raises(SetupError, match=r"not open"):
            call()
    with run, pytest.raises(SetupError, match=r"already open"):
        run.__enter__()


def test_gan_with_two_optimizers_resumes_exactly(tmp_path: Path) -> None:
    def build() -> dict[str, Any]:
        torch.manual_seed(3)
        generator, critic = nn.Linear(2, 2), nn.Linear(2, 1)
        return {
            "generator": generator, "critic": critic, "opt_g": torch.optim.Adam(generator.parameters()),
            "opt_c": torch.optim.RMSprop(critic.parameters()),
        }  # fmt: skip

    def step(o: dict[str, Any]) -> str:
        o["opt_c"].zero_grad()
        (
            o["critic"](o["generator"](torch.randn(4, 2)).detach()) - o["critic"](torch.randn(4, 2))
        ).mean().backward()
        o["opt_c"].step()
        o["opt_g"].zero_grad()
        loss = -o["critic"](o["generator"](torch.randn(4, 2))).mean()
        loss.backward()
        o["opt_g"].step()
        return exact(loss.detach())

    whole = build()
    expected = [step(whole) for _ in range(9)]
    losses = []
    for part in range(3):
        objects = build()
        with holdfast.Run(tmp_path, every="1 step", **objects) as run:
            for _ in run.steps(3 * part + 3):
                losses.append(step(objects))
    assert losses == expected
