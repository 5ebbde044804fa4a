"""A run whose last state no lasting tier has is not taken for complete."""

import shutil
from pathlib import Path

import pytest
import torch

import holdfast
from holdfast.errors import SaveError
from holdfast.events import RunEnded
from holdfast.stores.journal import read_events


def train(folder: Path, *, spoil: bool, limit: float) -> int:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    tiers = ["memory", "run every 100"]
    with holdfast.Run(
        folder, every="1 step", tiers=tiers, wait_limit=limit, model=model, optimizer=optimizer
    ) as run:
        for _ in run.steps(5):
            model(torch.randn(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            run.end_step()
        if spoil:
            # The folder is lost: what an unmounted file system looks like.
            (folder / "ckpt").rename(folder / "away")
            (folder / "ckpt").write_text("not a folder")
    return run.resumed.step if run.resumed else 0


def test_a_last_state_that_is_in_memory_alone_is_an_error_and_not_lost(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(SaveError, match="in memory alone"):
        train(folder, spoil=True, limit=2.0)
    assert [event.how for event in read_events(folder) if isinstance(event, RunEnded)] == ["error"]
    (folder / "ckpt").unlink()
    shutil.move(folder / "away", folder / "ckpt")
    assert train(folder, spoil=False, limit=60.0) == 5, "the next attempt goes on from memory"
    assert [event.how for event in read_events(folder) if isinstance(event, RunEnded)][-1] == "finished"
