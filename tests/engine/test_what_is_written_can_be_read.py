"""A save is acknowledged only if a restore would take it: limits of readers included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import holdfast
from holdfast.capture import torch_inflate
from holdfast.errors import SaveError, SetupError
from holdfast.format import image, rank_record
from holdfast.format.image import TensorSpec, parse_image, plan_image
from holdfast.format.rank_record import ImageHeader, RankRecord


class Table:
    def __init__(self) -> None:
        self.rows: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        return dict(self.rows)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows = dict(state)


@pytest.fixture
def _small_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    # A dict of two million keys reaches the true limit, and takes half a minute.
    monkeypatch.setattr(image, "MAX_HEADER_BYTES", 64 << 10)
    monkeypatch.setattr(rank_record, "MAX_HEADER_BYTES", 64 << 10)


@pytest.mark.usefixtures("_small_headers")
@pytest.mark.parametrize("saves_before", [0, 3])
def test_a_state_with_more_names_than_readers_take_is_refused_at_once(
    tmp_path: Path, saves_before: int
) -> None:
    model, table = torch.nn.Linear(2, 2), Table()
    with holdfast.Run(tmp_path, model=model, table=table, every="1000 steps") as run:
        for _ in range(saves_before):
            run.end_step()
            assert run.save_now().wait()
        table.rows = {f"row {i}": torch.zeros(1) for i in range(2000)}
        with pytest.raises(SetupError, match="header"):
            run.save_now()
        table.rows = {"row": 1}
        run.end_step()
    assert holdfast.checkpoints(tmp_path)[0].step == run.step
    again = Table()
    holdfast.restore(tmp_path, {"table": again})
    assert again.rows == {"row": 1}


@pytest.mark.usefixtures("_small_headers")
def test_the_largest_header_that_is_laid_out_is_the_largest_that_is_read() -> None:
    refused = 0
    for keys in range(600, 900):
        specs = [TensorSpec(f"{i:040d}", "U8", (1,)) for i in range(keys)]
        try:
            layout = plan_image(specs, {})
        except SetupError:
            refused += 1
            continue
        assert not refused
        assert parse_image(layout.header, layout.size).spans == layout.spans
        record = RankRecord(0, 1, {}, {"a.safetensors": ImageHeader.of(layout)}).to_bytes()
        assert rank_record.parse_rank_record(record).layouts()["a.safetensors"].spans == layout.spans
    assert refused


def test_a_layout_that_readers_would_refuse_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def inflate(*args: Any) -> Any:
        raise ValueError("a reader stumbles")

    monkeypatch.setattr(torch_inflate, "inflate", inflate)
    with holdfast.Run(tmp_path, model=torch.nn.Linear(2, 2), every="1000 steps") as run:
        run.end_step()
        with pytest.raises(SaveError, match="would be unreadable"):
            run.save_now().wait()
        monkeypatch.undo()
    assert len(holdfast.checkpoints(tmp_path)) == 1
