"""`keep=` on a real run: what the user wants to keep is saved in the first place, and stays."""

from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.errors import StoreFull
from holdfast.testing.torch_loops import Objects
from holdfast.tiers.memory import MemoryTier
from holdfast.tiers.memory_slot import MemorySlot, SharedMemory


def validated(path: Path, losses: list[float], *, keep: str, **settings: Any) -> Objects:
    """One epoch for each validation loss."""
    objects = Objects()
    with holdfast.Run(path, keep=keep, **{"every": "1000 steps", **settings}, **objects.tracked) as run:
        for epoch in run.epochs(len(losses)):
            for batch in run.batches(objects.loader):
                loss = objects.train_on(batch)
                run.end_step(loss=loss)
            run.report(val_loss=losses[epoch])
    return objects


def found(path: Path) -> dict[tuple[int, int], float | None]:
    return {(c.step, c.epoch): c.metrics.get("val_loss") for c in holdfast.checkpoints(path)}


def test_the_best_by_validation_are_saved_and_stay(tmp_path: Path) -> None:
    validated(tmp_path, [0.9, 0.3, 0.8, 0.2, 0.7, 0.6], keep="latest 2, best 2 of -val_loss")
    assert {0.3, 0.2} <= set(found(tmp_path).values())
    assert 0.8 not in found(tmp_path).values()
    # At the end of their epochs: what stands behind the validation was done as well.
    assert found(tmp_path)[10, 2] == 0.3
    assert found(tmp_path)[20, 4] == 0.2


def test_a_number_belongs_to_its_step_and_to_no_later_checkpoint(tmp_path: Path) -> None:
    objects = Objects()
    batch = next(iter(objects.loader))
    settings: dict[str, Any] = {"every": "1000 steps", "keep": "latest 2, best of -val_loss"}
    with holdfast.Run(tmp_path, **settings, **objects.tracked) as run:
        for step in range(1, 9):
            objects.train_on(batch)
            run.end_step(loss=float(step))
            if step == 2:
                run.report(val_loss=0.1)
            if step > 2:
                run.save_now().wait()
    [best] = [c for c in holdfast.checkpoints(tmp_path) if "val_loss" in c.metrics]
    assert best.step == 2
    assert best.metrics == {"loss": 2.0, "val_loss": 0.1}
    assert best.reason == "val_loss 0.1 is the best"


def test_what_is_no_better_is_not_saved(tmp_path: Path) -> None:
    objects = Objects()
    batch = next(iter(objects.loader))
    settings: dict[str, Any] = {"every": "1000 steps", "keep": "latest 50, best of +accuracy"}
    with holdfast.Run(tmp_path, **settings, **objects.tracked) as run:
        for accuracy in (0.5, 0.4, float("nan"), 0.5, 0.6):
            objects.train_on(batch)
            run.end_step()
            run.report(accuracy=accuracy)
            for handle in list(run._require_open().saves.saver._pending):
                handle.wait()
            run.report(another=1.0)
    assert sorted(c.step for c in holdfast.checkpoints(tmp_path)) == [1, 5]


def test_a_restart_compares_with_what_was_saved_before(tmp_path: Path) -> None:
    validated(tmp_path, [0.5], keep="latest 50, best of -val_loss")
    validated(tmp_path, [0.0, 0.6], keep="latest 50, best of -val_loss")
    # The second epoch is no better: only the end of each process is saved besides the best.
    assert found(tmp_path) == {(5, 1): 0.5, (10, 2): 0.6}


@pytest.mark.parametrize("policy", [{"every": "3 steps"}, {"every": None}], ids=["rhythm", "auto"])
def test_epoch_ends_that_are_to_be_kept_are_saved(tmp_path: Path, policy: dict[str, Any]) -> None:
    validated(tmp_path, [0.9] * 6, keep="latest 2, epoch ends", **policy)
    ends = {(c.step, c.epoch) for c in holdfast.checkpoints(tmp_path)}
    assert ends >= {(5 * epoch, epoch) for epoch in range(1, 7)}


def test_the_best_outlives_memory_where_the_disk_takes_only_some(tmp_path: Path) -> None:
    losses = [0.9, 0.1, 0.8, 0.7, 0.6, 0.5, 0.4]
    tiers = ["memory", "run every 10"]
    validated(tmp_path, losses, keep="latest 2, best of -val_loss", tiers=tiers, every="1 steps")
    assert 0.1 in found(tmp_path).values()


def test_a_node_local_folder_keeps_no_more_than_it_should(tmp_path: Path) -> None:
    tiers = [f"{tmp_path / 'local'}", "single", "run every 10"]
    validated(tmp_path / "run", [0.5] * 8, keep="latest 2", tiers=tiers, every="1 steps")
    assert len(list((tmp_path / "local").glob("**/MANIFEST"))) == 2


def test_a_small_shared_memory_is_said_once_and_saves_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a container with 64 MB of /dev/shm: the first slot fits, the second does not."""
    made: list[str] = []

    def allocate(slot: MemorySlot, file: str, nbytes: int) -> SharedMemory:
        made.append(slot.path)
        if len(set(made)) > 1:
            raise StoreFull("No space left on device")
        return real(slot, file, nbytes)

    real = MemorySlot.allocate
    monkeypatch.setattr(MemorySlot, "allocate", allocate)
    monkeypatch.setattr(MemoryTier, "lacks_room", lambda *args, **more: "64 MB are too few")
    validated(tmp_path, [0.5, 0.4, 0.3], keep="latest 2", tiers=["memory", "run every 2"], every="1 steps")
    assert max(found(tmp_path))[0] == 15
    assert caplog.text.count("memory has no room for checkpoints") == 1
