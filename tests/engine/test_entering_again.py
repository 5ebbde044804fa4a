"""One Run object, entered again and again, as in the cells of a notebook."""

from pathlib import Path

import pytest

import holdfast
from holdfast.testing.torch_loops import Objects, exact


def losses_of(run: holdfast.Run, objects: Objects, epochs: int, fail_at: int | None = None) -> list[str]:
    losses = []
    with run:
        for _ in run.epochs(epochs):
            for batch in run.batches(objects.loader):
                losses.append(exact(objects.train_on(batch)))
                run.end_step()
                if run.step == fail_at:
                    raise ZeroDivisionError
    return losses


def test_a_run_that_is_entered_again_goes_on(tmp_path: Path) -> None:
    whole = Objects()
    expected = losses_of(holdfast.Run(tmp_path / "whole", **whole.tracked), whole, 3)
    objects = Objects()
    run = holdfast.Run(tmp_path / "cells", **objects.tracked)
    assert [loss for epochs in (1, 2, 3) for loss in losses_of(run, objects, epochs)] == expected
    assert (run.step, run.epoch) == (15, 3)


def test_a_cell_that_failed_is_run_again_from_the_last_checkpoint(tmp_path: Path) -> None:
    objects = Objects()
    run = holdfast.Run(tmp_path, every="1 step", **objects.tracked)
    with pytest.raises(ZeroDivisionError):
        losses_of(run, objects, 3, fail_at=7)
    losses_of(run, objects, 3)
    assert run.resumed is not None
    assert run.step == 15
