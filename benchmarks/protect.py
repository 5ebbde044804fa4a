"""How fast a node protects a checkpoint and how fast a lost one is rebuilt, against memcpy and raw loopback.

Four nodes on loopback addresses, their folders in memory so that no disk is measured, the servers in a
process of their own. All in one run: the ratios are what counts. Speeds are bytes of one node's own data.
"""

from __future__ import annotations

import os
import shutil
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.checkpoints.bytes_source import BytesSource
from holdfast.checkpoints.read import allocate_pages
from holdfast.format.manifest import Manifest, parse_manifest
from holdfast.redundancy.sets import group_nodes
from holdfast.stores.base import Store
from holdfast.stores.locations import node_store
from holdfast.stores.remote import RemoteStore
from holdfast.stores.serve import NodeServer
from holdfast.tiers.protect import protect
from holdfast.tiers.protect_members import Members, files_by_node
from holdfast.tiers.rebuild import rebuild
from options import parse_options
from scoreboard import Scoreboard

TOKEN = os.urandom(32)
NODES = ["node0", "node1", "node2", "node3"]
UUID = "00000000-0000-4000-8000-000000000001"
NAME = "e00000001-s000000000001-00000001"
PORT = 47310


def seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def memcpy(size: int) -> float:
    source, target = allocate_pages(size), allocate_pages(size)
    # Both touched: memory that was never written is one page of zeros, and fast.
    source[:] = b"\x5a" * size
    target[:] = source
    return size / seconds(lambda: target.__setitem__(slice(None), source))


def loopback(size: int) -> float:
    """One stream between two processes, into memory that has been touched."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        child = os.fork()
        if child == 0:
            with socket.create_connection(listener.getsockname()) as sender:
                block = memoryview(bytes(4 << 20))
                for start in range(0, size, len(block)):
                    sender.sendall(block[: size - start])
            os._exit(0)
        connection, _ = listener.accept()
        buffer, got = allocate_pages(16 << 20), 0
        buffer[:] = bytes(16 << 20)
        begin = time.perf_counter()
        while got < size:
            got += connection.recv_into(buffer)
        spent = time.perf_counter() - begin
        connection.close()
        os.waitpid(child, 0)
    return size / spent


def write_checkpoint(root: Path, size: int) -> bytes:
    """Every node's own file, and on all nodes the manifest that lists them all."""
    records = []
    for rank, node in enumerate(NODES):
        file = BytesSource(f"state-r{rank:05d}.bin", os.urandom(size))
        records.append(node_store(root / node, uuid=UUID).write(NAME, file))
    manifest = Manifest(
        store=UUID, writer_epoch=1, step=1, nonce="00000001", parent=None, created="", reason="benchmark",
        files=tuple(records),
    ).to_bytes()  # fmt: skip
    for node in NODES:
        node_store(root / node, uuid=UUID).publish(NAME, manifest)
    return manifest


def serve_in_a_child(root: Path) -> tuple[int, int]:
    """The child's process id, and the end of a pipe that keeps it alive."""
    ready_read, ready_write = os.pipe()
    life_read, life_write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(life_write)
        servers = [
            NodeServer({"local": node_store(root / node, uuid=UUID)}, TOKEN, f"127.0.0.{10 + n}", PORT + n)
            for n, node in enumerate(NODES)
        ]
        os.write(ready_write, b"!")
        os.read(life_read, 1)
        for server in servers:
            server.close()
        os._exit(0)
    os.read(ready_read, 1)
    for each in (ready_read, ready_write, life_read):
        os.close(each)
    return child, life_write


def measure(scheme: str, root: Path, size: int) -> tuple[float, float]:
    """(protecting, rebuilding) in bytes of one node's data per second."""
    manifest = write_checkpoint(root, size)
    parsed = parse_manifest(manifest)
    members = Members(group_nodes(NODES, scheme), files_by_node(parsed, NODES))
    child, life = serve_in_a_child(root)
    far = {n: RemoteStore((f"127.0.0.{10 + i}", PORT + i), TOKEN) for i, n in enumerate(NODES)}

    def seen_from(me: str) -> dict[str, Store]:
        return {n: node_store(root / n, uuid=UUID) if n == me else far[n] for n in NODES}

    try:
        took = [seconds(lambda n=n: protect(NAME, n, seen_from(n), members)) for n in NODES]  # type: ignore[misc]
        shutil.rmtree(root / "node1")
        own = [record.name for record in members.files["node1"]]
        again = seconds(lambda: rebuild(manifest, "node1", seen_from("node1"), own))
    finally:
        for store in far.values():
            store.close()
        os.close(life)
        os.waitpid(child, 0)
        shutil.rmtree(root)
    return size / statistics.median(took), size / again


def main() -> None:
    options = parse_options(__doc__, repeats=3)
    size = (64 if options.quick else 256) * 10**6
    found: dict[str, list[tuple[float, float]]] = {}
    copy, wire = [], []
    parent = Path(tempfile.mkdtemp(dir="/dev/shm"))
    try:
        for _ in range(options.repeats):
            copy.append(memcpy(size))
            wire.append(loopback(size))
            for scheme in ("partner", "xor:4", "rs:2+2"):
                found.setdefault(scheme, []).append(measure(scheme, parent / "job", size))
    finally:
        shutil.rmtree(parent)
    board = Scoreboard("protect", f"Protecting and rebuilding a node of 4, {size / 1e6:.0f} MB each", options)
    board.add("raw memcpy", "protect", "B/s", copy)
    board.add("raw loopback, one stream", "protect", "B/s", wire)
    for scheme, samples in found.items():
        board.add(scheme, "protect", "B/s", [there for there, _ in samples])
        board.add(scheme, "rebuild", "B/s", [back for _, back in samples])
    board.finish()


if __name__ == "__main__":
    main()
