"""A RankStore over a c10d store, as `torch.distributed` and torchrun start one for every job."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import PrefixStore, Store

from holdfast.errors import StoreUnavailable

# TCPStore closes the connection on a value above 8 MiB.
PART_BYTES = 4 << 20
_WHOLE, _PARTS = b"=", b"#"


class TorchRankStore:
    """`store` must not be the training's own object: its time limit is changed here. Hand in a clone."""

    def __init__(self, store: Store) -> None:
        # torch's own stubs know neither bytes as values nor clone.
        self._store: Any = store

    def set(self, key: str, value: bytes) -> None:
        with _named(f"set {key}"):
            if len(value) < PART_BYTES:
                self._store.set(key, _WHOLE + value)
                return
            # Parts first: whoever sees the key finds them all.
            parts = range(0, len(value), PART_BYTES)
            for number, start in enumerate(parts):
                self._store.set(f"{key}#{number}", value[start : start + PART_BYTES])
            self._store.set(key, _PARTS + str(len(parts)).encode())

    def set_many(self, values: Mapping[str, bytes]) -> None:
        with _named(f"set {len(values)} keys"):
            if values:
                self._store.multi_set(list(values), [_WHOLE + value for value in values.values()])

    def set_first(self, key: str, value: bytes) -> bytes:
        with _named(f"set {key}"):
            return _bytes(self._store.compare_set(key, "", _WHOLE + value))[1:]

    def get(self, key: str, limit: float) -> bytes | None:
        found = self.get_many([key], limit)
        return found[0] if found else None

    def get_many(self, keys: Sequence[str], limit: float) -> list[bytes] | None:
        if not keys:
            return []
        with _named(f"get {keys[0]}"):
            self._store.set_timeout(timedelta(seconds=max(limit, 0.001)))
            try:
                found = self._store.multi_get(list(keys))
                return [self._joined(key, _bytes(value)) for key, value in zip(keys, found, strict=True)]
            except dist.DistStoreError:
                return None

    def check(self, keys: Sequence[str]) -> bool:
        with _named("check"):
            return not keys or bool(self._store.check(list(keys)))

    def add(self, key: str, amount: int) -> int:
        with _named(f"add to {key}"):
            return int(self._store.add(key, amount))

    def delete(self, key: str) -> None:
        with _named(f"delete {key}"):
            self._store.delete_key(key)
            number = 0
            while self._store.delete_key(f"{key}#{number}"):
                number += 1

    def clone(self) -> TorchRankStore:
        with _named("connect"):
            return TorchRankStore(self._store.clone())

    def scoped(self, prefix: str) -> TorchRankStore:
        return TorchRankStore(PrefixStore(prefix, self._store))

    def _joined(self, key: str, value: bytes) -> bytes:
        if value[:1] == _WHOLE:
            return value[1:]
        parts = self._store.multi_get([f"{key}#{number}" for number in range(int(value[1:]))])
        return b"".join(_bytes(part) for part in parts)


def _bytes(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


class _named:
    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # DistError is a RuntimeError; an unfit store says so with NotImplementedError, also one of these.
        if isinstance(error, RuntimeError):
            what = str(error).partition("\n")[0]
            raise StoreUnavailable(
                f"the ranks' store did not {self._what}: {what}",
                hint="it lives with rank 0 or with torchrun on the first node; look there for what ended",
            ) from error


# ---- A store over TCP for ranks that met through something else (`init_method="file://..."`, a HashStore).
#
# torch's FileStore appends every call to its file and every reader reads the whole of it again: what asks
# now and then for hours would never end, and fill the disk. So it is used once, to say where rank 0
# listens.

_KEY = "holdfast/address"
# By what the ranks met through, which is kept: a second Run of this process must find the first one's.
_made: dict[int, tuple[Store, TCPStore]] = {}
_making = threading.Lock()


def over_tcp(store: Store, rank: int, limit: float) -> Store:
    """The store itself where it is one over TCP; else one that rank 0 serves."""
    if isinstance(_innermost(store), TCPStore):
        return store
    with _making:
        if id(store) not in _made:
            _made[id(store)] = (store, _serve(store) if rank == 0 else _find(store, limit))
        return _made[id(store)][1]


def _innermost(store: Any) -> Any:
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store


def _serve(store: Any) -> TCPStore:
    server = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    store.set(_KEY, f"{socket.gethostname()} {server.port}")
    return server


def _find(store: Any, limit: float) -> TCPStore:
    try:
        with contextlib.suppress(AttributeError):
            store.wait([_KEY], timedelta(seconds=limit))
        host, port = store.get(_KEY).decode().split()
        if host == socket.gethostname():
            host = "127.0.0.1"
        return TCPStore(host, int(port), None, False, timeout=timedelta(seconds=limit))
    except (RuntimeError, ValueError) as error:
        raise StoreUnavailable(
            f"rank 0 cannot be reached: {str(error).partition(chr(10))[0]}",
            hint="every rank must create the Run; where the ranks' machines cannot connect to each other by "
            "name, initialise torch.distributed with env:// or tcp://",
        ) from error
