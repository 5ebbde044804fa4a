"""A run that another process has taken over ends: nothing that it trains from then on can be saved."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import holdfast
from holdfast.errors import Fenced
from holdfast.stores.store import CheckpointStore


def test_a_fenced_run_ends_at_the_next_boundary(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(run: holdfast.Run) -> None:
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        run.end_step()

    def train() -> None:
        with holdfast.Run(tmp_path, every="1000 steps", model=model, optimizer=optimizer) as run:
            step(run)
            run.save_now().wait()
            CheckpointStore(tmp_path).claim(take_over=True)
            step(run)
            assert run.save_now().ended_within(60)
            step(run)
            pytest.fail("a fenced run trained on")

    with pytest.raises(Fenced):
        train()
