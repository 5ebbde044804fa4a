"""Several processes write one checkpoint: the first claims, the others join its epoch."""

import os
from pathlib import Path

import pytest

from holdfast.checkpoints.find import committed
from holdfast.checkpoints.verify import verify
from holdfast.errors import Fenced, SetupError, StoreNotFound
from holdfast.format.manifest import Manifest
from holdfast.format.names import CheckpointName
from holdfast.stores.store import CheckpointStore
from holdfast.testing.memory_image import image_of

NAME = CheckpointName(1, 5, "0badcafe")


def test_a_joined_process_writes_into_the_place_that_the_claimant_began(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path) as first:
        epoch = first.claim()
        first.begin(str(NAME), 0)
        child = os.fork()
        if child == 0:
            other = CheckpointStore(tmp_path)
            other.join(epoch)
            other.write(str(NAME), image_of(5, name="other.safetensors"))
            os._exit(0)
        mine = first.write(str(NAME), image_of(5, name="first.safetensors"))
        assert os.waitpid(child, 0)[1] == 0
        same_bytes = [mine, mine.__class__(**{**vars(mine), "name": "other.safetensors"})]
        manifest = Manifest(
            store=first.uuid, writer_epoch=epoch, step=5, nonce=NAME.nonce, parent=None, created="",
            reason="two processes", files=tuple(same_bytes),
        )  # fmt: skip
        first.publish(str(NAME), manifest.to_bytes())
        assert verify(first, committed(first)[0]).is_whole


def test_joining_takes_no_lock_and_keeps_none(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path) as first:
        epoch = first.claim()
        with CheckpointStore(tmp_path) as second:
            second.join(epoch)
            assert second.writer_epoch == epoch
        assert first.writer_epoch == epoch


def test_an_epoch_that_was_taken_over_cannot_be_joined(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path) as first:
        old = first.claim()
    with CheckpointStore(tmp_path) as heir:
        heir.claim()
        with pytest.raises(Fenced, match="has taken over with writer epoch 2"):
            CheckpointStore(tmp_path).join(old)


def test_a_joined_process_cannot_commit_once_somebody_took_over(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path) as first:
        epoch = first.claim()
        first.begin(str(NAME), 0)
    second = CheckpointStore(tmp_path)
    second.join(epoch)
    with CheckpointStore(tmp_path) as heir:
        heir.claim()
        with pytest.raises(Fenced):
            second.retire(str(NAME))


def test_an_epoch_that_nobody_claimed_or_a_folder_that_is_not_there_cannot_be_joined(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path / "run") as first:
        first.claim()
    with pytest.raises(SetupError, match="nobody has claimed writer epoch 7"):
        CheckpointStore(tmp_path / "run").join(7)
    with pytest.raises(StoreNotFound):
        CheckpointStore(tmp_path / "elsewhere").join(1)
