"""What saving costs here is learned once, however short the lives of the processes are."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import holdfast


def life(path: Path, steps: int) -> float | None:
    """One process of a run that ends with a save. Returns the cost of a save that it began with."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with holdfast.Run(path, every="5 steps", model=model, optimizer=optimizer) as run:
        known = run.policy.profile.cost_seconds
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
            run.end_step()
    return known


def test_a_life_with_one_save_hands_on_what_it_was_told(tmp_path: Path) -> None:
    assert life(tmp_path / "run", 12) is None
    assert life(tmp_path / "run", 1) is not None
    assert life(tmp_path / "run", 1) is not None
