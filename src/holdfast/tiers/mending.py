"""Put right bytes in the place of damaged ones. The one exception to "committed files never change".

A damaged file is not what was committed. Its replacement is written beside it, made durable and compared with
the manifest's digests; only then does the damaged one go. At no moment is there less than there was before.
"""

from __future__ import annotations

import os
import threading

from holdfast.errors import HoldfastError, StoreError
from holdfast.format.manifest import FileRecord
from holdfast.format.sealed import MAX_SEALED_BYTES, check_seal
from holdfast.stores.base import Store
from holdfast.stores.directory import CKPT, MANIFEST, PART, SECOND, DirectoryStore
from holdfast.stores.node_store import NodeStore
from holdfast.stores.objects import ObjectStore
from holdfast.stores.os_errors import store_errors
from holdfast.stores.small_read import read_regular
from holdfast.tiers.bandwidth import Bandwidth
from holdfast.tiers.copying import Copier, LadderSource
from holdfast.tiers.ladder import Ladder
from holdfast.tiers.memory import MemoryTier
from holdfast.tiers.named_tier import NamedTier
from holdfast.tiers.target import FolderTarget, StoreTarget


def claim_to_mend(store: Store) -> None:
    """Become the writer of a tier; RunInUse while its run lives."""
    if isinstance(store, (DirectoryStore, ObjectStore, MemoryTier)):
        store.claim()


def mend_file(ladder: Ladder, tier: NamedTier, name: str, record: FileRecord) -> bool:
    """Replace one file by the good chunks of all tiers, this one's own among them. Raises and changes nothing
    if any chunk is good nowhere. True if that took the whole checkpoint to be written again."""
    store = tier.store
    if isinstance(store, ObjectStore):
        _rewrite(ladder.without(tier.name), store, name)
        return True
    file = ladder.open(name, record.name)
    try:
        source = LadderSource(record, file, Bandwidth(None), threading.Event())
        if isinstance(store, MemoryTier):
            store.mend(name, source)
        elif isinstance(store, (DirectoryStore, NodeStore)):
            FolderTarget(store).put(name, source, record, replace=True)
        else:
            raise StoreError(f"{store.where} cannot be repaired from here", hint="repair it where it lies")
    finally:
        file.close()
    return False


def _rewrite(others: Ladder, store: Store, name: str) -> None:
    """In a bucket nothing is replaced: the whole checkpoint is copied anew, once it is sure that the other
    tiers have all of it."""
    for record in Copier(others, StoreTarget(store)).manifest(name).files:
        file = others.open(name, record.name)
        try:
            source = LadderSource(record, file, Bandwidth(None), threading.Event())
            for start in range(0, record.size, record.chunk_bytes):
                source.view(start, min(start + record.chunk_bytes, record.size))
        finally:
            file.close()
    store.retire(name)
    copier = Copier(others, StoreTarget(store))
    copier.copy(name)
    copier.publish(name)


def manifest_problems(store: Store, name: str, right: bytes) -> list[str]:
    """What is wrong with a tier's own commit record, both copies where there are two."""
    try:
        found = store.manifest(name)
    except HoldfastError as error:
        return [error.message]
    if found != right:
        return [f"{store.where} holds another checkpoint of the name {name}"]
    if isinstance(store, (DirectoryStore, NodeStore)):
        folder = os.path.join(store.where, CKPT, name)
        return [
            f"{file} of {name} in {store.where} is damaged"
            for file in (MANIFEST, SECOND)
            if _read(os.path.join(folder, file)) != right
        ]
    return []


def mend_manifest(store: Store, name: str, right: bytes) -> None:
    """Write a damaged commit record again, whole, from another tier's."""
    check_seal(right)
    if isinstance(store, MemoryTier):
        store.mend_manifest(name, right)
    elif isinstance(store, (DirectoryStore, NodeStore)):
        folder = os.path.join(store.where, CKPT, name)
        for file in (SECOND, MANIFEST):
            if _read(os.path.join(folder, file)) != right:
                _replace(folder, file, right)
    else:
        raise StoreError(f"the manifest of {name} in {store.where} cannot be repaired", hint="copy it anew")


def _replace(folder: str, file: str, data: bytes) -> None:
    with store_errors(f"mend {file}", folder):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(os.path.join(folder, PART), flags, 0o666), "wb") as part:
            part.write(data)
            part.flush()
            os.fsync(part.fileno())
        os.replace(os.path.join(folder, PART), os.path.join(folder, file))
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(place)
        finally:
            os.close(place)


def _read(path: str) -> bytes | None:
    try:
        return read_regular(path, MAX_SEALED_BYTES)
    except OSError:
        return None
