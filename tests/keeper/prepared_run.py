"""A run whose nodes keep checkpoints on disks of their own, as trainers that were killed would leave them."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path

from holdfast.checkpoints.find import look
from holdfast.checkpoints.verify import verify
from holdfast.format.manifest import Manifest
from holdfast.format.names import parse_checkpoint_name
from holdfast.redundancy.sets import group_nodes
from holdfast.stores.locations import node_store
from holdfast.stores.store import CheckpointStore
from holdfast.testing.memory_image import MemoryImage
from holdfast.testing.store_contract import draft
from holdfast.tiers.node_places import open_node_store
from holdfast.tiers.protect import protect
from holdfast.tiers.protect_members import Members, files_by_node
from holdfast.tiers.tier_list import remember_tiers
from holdfast.tiers.words import Tier


class PreparedRun:
    """Node n of the job is `node00n`, on the disk `disk<n>` below `folder`."""

    def __init__(self, folder: Path, nodes: int, *, local: str = "$NODE_DIR/cache") -> None:
        self.folder = folder
        self.home = folder / "run"
        self.nodes = [f"node{n:03d}" for n in range(nodes)]
        self.local = Tier(local, protect="single")
        with CheckpointStore(self.home) as store:
            store.claim()
            self.uuid = store.uuid
        remember_tiers(self.home, [self.local, Tier("run", flush_every=10)])
        self.content: dict[str, dict[str, bytes]] = {}

    def cache(self, index: int) -> CheckpointStore:
        with environ("NODE_DIR", str(self.folder / f"disk{index}")):
            return open_node_store(self.local, self.uuid, self.nodes[index])

    def save(self, step: int, scheme: str, size: int = 30_000) -> str:
        """Two files for each node, protected. Returns the checkpoint's name."""
        luck, planned = random.Random(step), draft(step, nonce=f"{step:08d}")
        name = str(planned.name)
        content = {
            f"part{i}-r{n:05d}.bin": luck.randbytes(size + 1000 * n + i)
            for n in range(len(self.nodes))
            for i in range(2)
        }
        whole = node_store(self.folder / "whole", uuid=self.uuid)
        records = tuple(whole.write(name, MemoryImage(file, data)) for file, data in content.items())
        manifest = Manifest(
            store=self.uuid, writer_epoch=1, step=step, nonce=f"{step:08d}", parent=None,
            created=planned.created, reason="test", files=records,
        )  # fmt: skip
        files = files_by_node(manifest, self.nodes)
        stores = {node: self.cache(index) for index, node in enumerate(self.nodes)}
        for node, store in stores.items():
            for record in files[node]:
                store.write(name, MemoryImage(record.name, content[record.name]), expect=record)
            store.publish(name, manifest.to_bytes())
        members = Members(group_nodes(self.nodes, scheme), files)
        for node in self.nodes:
            protect(name, node, stores, members)
        self.content[name] = content
        return name

    def commit_at_home(self, name: str) -> None:
        with CheckpointStore(self.home) as store:
            store.claim()
            store.begin(name, 0)
            for file, data in self.content[name].items():
                store.write(name, MemoryImage(file, data))
            store.publish(name, self.cache(0).manifest(name))

    def lose_disk(self, index: int) -> None:
        shutil.rmtree(self.folder / f"disk{index}")

    def place(self, index: int, name: str) -> Path:
        return Path(self.cache(index).where) / "ckpt" / name

    def names_at_home(self) -> list[str]:
        return CheckpointStore(self.home).names()

    def is_whole_at_home(self, name: str) -> bool:
        """Committed, every digest right, and bit for bit what was saved."""
        store = CheckpointStore(self.home)
        parsed = parse_checkpoint_name(name)
        assert parsed is not None
        place = self.home / "ckpt" / name
        same = all((place / file).read_bytes() == data for file, data in self.content[name].items())
        return same and verify(store, look(store, parsed), deep=True).is_whole


@contextmanager
def environ(name: str, value: str):
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def damage(path: Path, at: Sequence[int] = (100,)) -> None:
    data = bytearray(path.read_bytes())
    for offset in at:
        data[offset] ^= 0x40
    path.write_bytes(data)
