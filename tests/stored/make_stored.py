"""Writes the files beside this script: what the stores leave on a disk and in a bucket, in every state.

Run it only with the commit whose files are to be kept: `python tests/stored/make_stored.py`. The tests read
what an older commit wrote; files written anew would prove nothing about it.
"""

import io
import socket
import tarfile
from pathlib import Path

from holdfast.stores.locations import bucket_store, node_store
from holdfast.stores.obstore_bucket import ObstoreBucket
from holdfast.stores.store import CheckpointStore
from holdfast.testing.memory_image import image_of
from holdfast.testing.memory_io import ROOT, MemoryIO
from holdfast.testing.store_contract import draft, save

HERE = Path(__file__).parent
UUID = "12345678-1234-1234-1234-123456789abc"
PARTNER = "r00001-000.safetensors"


def fill_run(io: MemoryIO) -> None:
    """Two committed, one begun, one retired as far as its tombstone, one copy half made."""
    store = CheckpointStore("/run", io=io, uuid=UUID)
    epoch = store.claim()
    for step in (1, 2, 3):
        save(store, step, writer_epoch=epoch, nonce=f"{step:08x}")
    begun = str(draft(4, writer_epoch=epoch, nonce="00000004").name)
    store.begin(begun, 1 << 20)
    store.write(begun, image_of(4))
    ckpt = io.open_directory(io.open_root("/run", create=False), "ckpt")
    place = io.open_directory(ckpt, str(draft(1, writer_epoch=epoch, nonce="00000001").name))
    io.rename(place, "MANIFEST", "MANIFEST.dead")
    fill_incoming(io, "/run", 5)


def fill_node(io: MemoryIO) -> None:
    """Two committed, one with a partner's file; one that is being filled."""
    store = node_store("/run", io=io, uuid=UUID)
    for step in (1, 2):
        save(store, step, nonce=f"{step:08x}")
    store.write(str(draft(2, nonce="00000002").name), image_of(102, name=PARTNER))
    fill_incoming(io, "/run", 3)


def fill_incoming(io: MemoryIO, where: str, step: int) -> None:
    store = node_store(where, io=io)
    store.write(str(draft(step, nonce=f"{step:08x}").name), image_of(step))


def fill_bucket(bucket: ObstoreBucket) -> None:
    store = bucket_store(bucket, uuid=UUID)
    epoch = store.claim()
    for step in (1, 2):
        save(store, step, writer_epoch=epoch, nonce=f"{step:08x}")
    begun = str(draft(3, writer_epoch=epoch, nonce="00000003").name)
    store.begin(begun, 1 << 20)
    store.write(begun, image_of(3))
    bucket.create(f"ckpt/{draft(1, writer_epoch=epoch, nonce='00000001').name}/MANIFEST.dead", b"x")


def add(tar: tarfile.TarFile, name: str, content: bytes | None) -> None:
    entry = tarfile.TarInfo(name)
    if content is None:
        entry.type, entry.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(entry)
    else:
        entry.size, entry.mode = len(content), 0o644
        tar.addfile(entry, io.BytesIO(content))


def pack_tree(memory: MemoryIO, path: Path) -> None:
    with tarfile.open(path, "w:xz") as tar:
        todo = [("", ROOT)]
        while todo:
            above, inode = todo.pop()
            for name, inside in sorted(memory.tree.directories[inode].items()):
                where = f"{above}{name}"
                if inside in memory.tree.directories:
                    add(tar, where, None)
                    todo.append((f"{where}/", inside))
                else:
                    add(tar, where, bytes(memory.tree.files[inside]))


def pack_bucket(bucket: ObstoreBucket, path: Path) -> None:
    with tarfile.open(path, "w:xz") as tar:
        for key in sorted(bucket.keys("")):
            state = bucket.look(key)
            assert state is not None
            data = bytearray(state.size)
            bucket.read(key, 0, memoryview(data), None)
            add(tar, key, bytes(data))


def main() -> None:
    socket.gethostname = lambda: "trainer"  # what is kept says nothing about the machine that wrote it
    for name, fill in (("run", fill_run), ("node", fill_node)):
        memory = MemoryIO()
        fill(memory)
        pack_tree(memory, HERE / f"{name}.tar.xz")
    bucket = ObstoreBucket("memory:///")
    fill_bucket(bucket)
    pack_bucket(bucket, HERE / "bucket.tar.xz")


if __name__ == "__main__":
    main()
