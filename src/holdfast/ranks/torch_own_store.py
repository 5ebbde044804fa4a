"""A store over TCP for ranks that met through something else (`init_method="file://..."`, a HashStore).

torch's FileStore appends every call to its file and every reader reads the whole of it again: what asks now
and then for hours would never end, and fill the disk. So it is used once, to say where rank 0 listens.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import PrefixStore, Store

from holdfast.errors import StoreUnavailable

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
