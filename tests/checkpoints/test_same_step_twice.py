"""One step saved twice: the later save is the newer checkpoint, in every listing and for every restore."""

from pathlib import Path

from holdfast.checkpoints.find import committed
from holdfast.checkpoints.write import CheckpointDraft, write_checkpoint
from holdfast.stores.store import CheckpointStore


def test_the_later_of_two_saves_of_one_step_is_the_newest(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path / "run") as store:
        epoch = store.claim()
        for number in range(20):
            draft = CheckpointDraft(
                writer_epoch=epoch, step=350, created="", reason=f"save {number}", progress={"number": number}
            )
            write_checkpoint(store, draft, [])
        order = [found.manifest.progress["number"] for found in committed(store) if found.manifest]
    assert order == list(reversed(range(20)))
