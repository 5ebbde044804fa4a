"""`load_weights` falls back like a restore does: loudly; and a damaged step asked for by name is an error."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

import holdfast
from holdfast.errors import CorruptCheckpoint


def run_of_two(path: Path) -> list[Path]:
    """The folders of two checkpoints, newest first."""
    model = torch.nn.Linear(4, 4)
    with holdfast.Run(path, model=model, optimizer=torch.optim.SGD(model.parameters())) as run:
        for _ in range(2):
            run.end_step()
            with torch.no_grad():
                model.weight.add_(1)
            run.save_now().wait()
    return [path / "ckpt" / found.name for found in holdfast.checkpoints(path)]


def test_a_damaged_newest_is_passed_over_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    newest, _ = run_of_two(tmp_path)
    file = newest / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\x55")
    with caplog.at_level(logging.WARNING, "holdfast"):
        holdfast.load_weights(tmp_path)
    assert newest.name in caplog.text


def test_a_step_whose_manifest_is_damaged_is_a_clear_error(tmp_path: Path) -> None:
    newest, _ = run_of_two(tmp_path)
    for name in ("MANIFEST", "MANIFEST.2"):
        (newest / name).write_bytes(b"{}")
    with pytest.raises(CorruptCheckpoint, match="unreadable"):
        holdfast.load_weights(tmp_path, step=2)
