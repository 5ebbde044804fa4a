"""Others fill /dev/shm while a training runs: it goes on saving, to where it lasts."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import holdfast
from holdfast.checkpoints.find import committed
from holdfast.errors import StoreFull
from holdfast.staging.shared_slots import SharedSlots
from holdfast.staging.slots import Slot, anonymous_memory
from holdfast.stores.store import CheckpointStore
from holdfast.tiers import memory_folder

WIDTH = 512  # A megabyte of weights.


@pytest.fixture
def small_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (place := tmp_path / "shm").mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(place)], capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("needs root and a mount")
    monkeypatch.setattr(memory_folder, "SHM", str(place))
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("full_after", [0, 1])
@pytest.mark.parametrize("tiers", [["memory", "run"], ["memory", "run every 100"]])
def test_what_others_fill_between_two_saves_costs_no_checkpoint(
    small_memory: Path, tmp_path: Path, tiers: list[str], full_after: int
) -> None:
    model = torch.nn.Linear(WIDTH, WIDTH)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    folder = tmp_path / "run"
    with holdfast.Run(folder, every="1000 steps", keep=9, tiers=tiers, model=model, opt=opt) as run:
        for step in range(4):
            model(torch.ones(1, WIDTH)).sum().backward()
            opt.step()
            opt.zero_grad()
            run.end_step()
            assert run.save_now().wait()
            if step == full_after:
                assert list(small_memory.rglob("model.safetensors")), "they are in memory"
                with open(small_memory / "of others", "wb") as file:
                    state = os.statvfs(small_memory)
                    file.write(b"x" * (state.f_bavail * state.f_frsize))
        expected = model.weight.detach().clone()
    assert committed(CheckpointStore(folder))[0].step == 4
    assert torch.equal(holdfast.load_weights(folder)["weight"], expected)


class Full:
    """A memory tier of which others have taken the rest after the first slot."""

    def reopen(self, slot: int) -> None:
        pass


def test_a_slot_that_no_longer_fits_is_made_in_the_process_itself(caplog: pytest.LogCaptureFixture) -> None:
    def slot() -> Slot:
        return Slot([], [], anonymous_memory)

    def make(number: int) -> Slot:
        if number == 1:
            raise StoreFull("No space left on device")
        return slot()

    slots = SharedSlots(Full(), make, 2, newest=None, otherwise=slot)
    first = slots.lease()
    assert first is not None
    second = slots.lease()
    assert second is not None
    assert second.slot is not first.slot
    assert "filled by others" in caplog.text
    with pytest.raises(StoreFull):
        SharedSlots(Full(), make, 2, newest=0).lease()
