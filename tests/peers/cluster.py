"""Nodes in one process: a folder and a server on a loopback address each; others reach them only by TCP."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from holdfast.errors import HoldfastError
from holdfast.format.manifest import Manifest, parse_manifest
from holdfast.redundancy.sets import group_nodes
from holdfast.stores.base import Store
from holdfast.stores.locations import node_store
from holdfast.stores.remote import RemoteStore
from holdfast.stores.serve import NodeServer
from holdfast.stores.store import CheckpointStore
from holdfast.testing.memory_image import MemoryImage
from holdfast.testing.store_contract import draft
from holdfast.tiers.protect import Protected, protect
from holdfast.tiers.protect_members import Members, files_by_node
from holdfast.tiers.rebuild import Rebuilt, rebuild

TOKEN = b"the nodes of one test"
UUID = "00000000-0000-4000-8000-000000000001"


class Cluster:
    """`sizes[n]` are the sizes of the files of node n. All nodes hold the same manifest from the start."""

    def __init__(self, scheme: str, sizes: Sequence[Sequence[int]]) -> None:
        # In memory: these tests are about bytes and not about disks, and every put is durable.
        self.root = Path(tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
        self.nodes = [f"node{n}" for n in range(len(sizes))]
        luck = random.Random(7)
        self.content = {
            f"part{i}-r{n:05d}.bin": luck.randbytes(size)
            for n, mine in enumerate(sizes)
            for i, size in enumerate(mine)
        }
        self._write_checkpoint()
        self.members = Members(group_nodes(self.nodes, scheme), files_by_node(self.parsed, self.nodes))
        self.servers = {
            node: NodeServer({"local": self.near(node)}, TOKEN, host=f"127.0.0.{10 + n}")
            for n, node in enumerate(self.nodes)
        }
        self._far = {node: RemoteStore(self.servers[node].address, TOKEN) for node in self.nodes}

    def _write_checkpoint(self) -> None:
        whole = node_store(self.root / "whole", uuid=UUID)
        planned = draft(5, nonce="00000005")
        self.name = str(planned.name)
        records = [whole.write(self.name, MemoryImage(f, data)) for f, data in self.content.items()]
        manifest = Manifest(
            store=UUID, writer_epoch=1, step=5, nonce="00000005", parent=None,
            created=planned.created, reason="test", files=tuple(records),
        )  # fmt: skip
        self.manifest = manifest.to_bytes()
        self.parsed = parse_manifest(self.manifest)
        for node, files in files_by_node(self.parsed, self.nodes).items():
            store = self.near(node)
            for file in files:
                store.write(self.name, MemoryImage(file.name, self.content[file.name]), expect=file)
            store.publish(self.name, self.manifest)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for each in (*self._far.values(), *self.servers.values()):
            each.close()
        shutil.rmtree(self.root)

    def near(self, node: str) -> CheckpointStore:
        return node_store(self.root / node, uuid=UUID)

    def seen_from(self, me: str) -> dict[str, Store]:
        return {node: self.near(node) if node == me else self._far[node] for node in self.nodes}

    def protect(self, me: str, *, verify: bool = False) -> Protected:
        return protect(self.name, me, self.seen_from(me), self.members, verify=verify)

    def protect_all(self) -> None:
        for node in self.nodes:
            self.protect(node)

    def rebuild(self, me: str) -> Rebuilt:
        return rebuild(self.manifest, me, self.seen_from(me), self.own_files(me))

    def own_files(self, node: str) -> list[str]:
        return [record.name for record in self.members.files[node]]

    def place(self, node: str) -> Path:
        return self.root / node / "ckpt" / self.name

    def lose(self, node: str) -> None:
        shutil.rmtree(self.root / node)

    def corrupt(self, node: str) -> None:
        """Every file this node holds, for itself and for others, is damaged."""
        for path in self.place(node).iterdir():
            if not path.name.startswith("MANIFEST") and path.stat().st_size:
                damage(path, path.stat().st_size // 2)

    def remember(self) -> None:
        for node in self.nodes:
            shutil.copytree(self.root / node, self.root / "remembered" / node)

    def recall(self) -> None:
        for node in self.nodes:
            shutil.rmtree(self.root / node, ignore_errors=True)
            shutil.copytree(self.root / "remembered" / node, self.root / node)

    def has_its_files(self, node: str) -> bool:
        """Bit for bit, and committed."""
        try:
            if self.near(node).manifest(self.name) != self.manifest:
                return False
        except HoldfastError:
            return False
        return all((self.place(node) / f).read_bytes() == self.content[f] for f in self.own_files(node))


def damage(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 0x40]))
