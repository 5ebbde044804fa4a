"""A training that has diverged does not push out what it could go back to, and can go back by itself."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import holdfast
from holdfast.checkpoints.find import committed
from holdfast.jobs.exit_codes import DO_NOT_RESTART, PLEASE_RUN_AGAIN
from holdfast.stores.store import CheckpointStore


def train(path: Path, losses: list[float], *, ruin_at: int | None = None, **settings: Any) -> holdfast.Run:
    torch.manual_seed(0)
    model = nn.Linear(3, 3)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    with holdfast.Run(path, **{"every": "1 step", **settings}, model=model, opt=opt) as run:
        for loss in losses[run.step :]:
            model(torch.ones(2, 3)).pow(2).sum().backward()
            opt.step()
            opt.zero_grad()
            if run.step + 1 == ruin_at:
                with torch.no_grad():
                    model.weight.fill_(math.nan)
            run.end_step(loss=torch.tensor(loss))
            run._require_open().saves.saver.wait_for_all()
    return run


def code_of(*args: Any, **settings: Any) -> Any:
    with pytest.raises(SystemExit) as left:
        train(*args, **settings)
    return left.value.code


def steps(path: Path) -> list[int]:
    return [c.step for c in holdfast.checkpoints(path)]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_the_newest_finite_checkpoint_outlives_any_number_of_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, bad: float
) -> None:
    train(tmp_path, [1.0, 0.9, 0.8] + [bad] * 9, keep=2)
    assert steps(tmp_path) == [12, 11, 3]
    assert caplog.text.count("the loss is not finite") == 1
    assert "on_nan='rewind'" in caplog.text


def test_weights_that_the_last_step_ruined_are_not_taken_for_finite(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The loss of that step was computed before it."""
    train(tmp_path, [1.0] * 4 + [math.nan] * 5, ruin_at=4, keep=2)
    assert steps(tmp_path) == [9, 8, 3]
    assert "model['weight'] holds NaN" in caplog.text


def test_when_the_loss_is_finite_again_nothing_is_kept_for_it(tmp_path: Path) -> None:
    train(tmp_path, [1.0, 1.0, math.inf, 1.0, 1.0, 1.0], keep=2)
    assert steps(tmp_path) == [6, 5]


def test_a_mask_of_infinities_is_nobodys_mistake(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("mask", torch.full((2, 2), -math.inf))
    half = nn.Linear(2, 2, dtype=torch.bfloat16)
    half.register_buffer("mask", torch.full((2, 2), -math.inf, dtype=torch.bfloat16))
    with holdfast.Run(tmp_path, model=model, half=half) as run:
        run.end_step(loss=1.0)
        run.save_now().wait()
    assert "NaN" not in caplog.text


def test_nan_in_any_kind_of_float_is_seen(tmp_path: Path) -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        model = nn.Linear(2, 2, dtype=dtype)
        with torch.no_grad():
            model.weight[1, 1] = math.nan
        path = tmp_path / str(dtype)
        with holdfast.Run(path, model=model) as run:
            run.save_now().wait()
        manifest = committed(CheckpointStore(path))[0].manifest
        assert manifest is not None
        assert "not-finite" in manifest.tags


def test_stop_ends_the_run_and_saves_nothing_of_it(tmp_path: Path) -> None:
    losses = [1.0, 0.9, 0.8] + [math.nan] * 9
    assert code_of(tmp_path, losses, on_nan="stop") == DO_NOT_RESTART
    assert max(steps(tmp_path)) == 3


def test_rewind_goes_back_to_the_newest_finite_checkpoint(tmp_path: Path) -> None:
    train(tmp_path, [1.0, 0.9, 0.8] + [math.nan] * 3)
    assert steps(tmp_path)[0] == 6
    run = train(tmp_path, [1.0] * 8, on_nan="rewind")
    assert run.resumed is not None
    assert run.resumed.step == 3
    assert len(run.resumed.rejected) == 2
    assert run.step == 8


def test_rewind_without_a_finite_checkpoint_goes_on_with_the_newest(tmp_path: Path) -> None:
    train(tmp_path, [math.nan] * 3)
    run = train(tmp_path, [1.0] * 5, on_nan="rewind")
    assert run.resumed is not None
    assert run.resumed.step == 3


def test_a_rewind_that_comes_no_further_is_not_tried_for_ever(tmp_path: Path) -> None:
    losses = [1.0, 0.9, 0.8] + [math.nan] * 9
    assert code_of(tmp_path, losses, on_nan="rewind") == PLEASE_RUN_AGAIN
    assert code_of(tmp_path, losses, on_nan="rewind") == DO_NOT_RESTART
    further = [1.0] * 6 + [math.nan] * 9
    assert code_of(tmp_path, further, on_nan="rewind") == PLEASE_RUN_AGAIN


def test_an_unknown_word_is_refused(tmp_path: Path) -> None:
    with pytest.raises(holdfast.SetupError, match="on_nan"):
        holdfast.Run(tmp_path, on_nan="explode", model=nn.Linear(1, 1))  # type: ignore[arg-type]


@pytest.mark.parametrize(("on_nan", "code"), [("stop", DO_NOT_RESTART), ("rewind", PLEASE_RUN_AGAIN)])
def test_a_training_that_diverges_in_its_last_step_does_not_end_as_finished(
    tmp_path: Path, on_nan: str, code: int
) -> None:
    losses = [1.0, 0.9, 0.8, math.nan]
    # No save is due at the last step, so nobody has looked at its loss.
    assert code_of(tmp_path, losses, every="3 steps", on_nan=on_nan) == code
    assert steps(tmp_path) == [3]
