"""A secret that the processes of one user share through a file: what nodes prove their membership with.

Not through torch's store, which answers anybody who can reach its port.
"""

from __future__ import annotations

import contextlib
import os
import stat

from holdfast.errors import StoreDenied, StoreError
from holdfast.stores.os_errors import store_errors

_BYTES = 32


def agree_on_secret(path: str) -> bytes:
    """The first one's. It appears whole or not at all, by a name that only one can give."""
    with store_errors("agree on a secret", path):
        if not os.path.lexists(path):
            part = f"{path}.{os.urandom(4).hex()}.part"
            handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(handle, "wb") as file:
                file.write(os.urandom(_BYTES).hex().encode())
                file.flush()
                os.fsync(file.fileno())
            # Not a rename: where the system cannot refuse to replace, the last of several would win, and the
            # others would have read a secret that is gone.
            with contextlib.suppress(FileExistsError):
                os.link(part, path)
            os.unlink(part)
    return read_secret(path)


def read_secret(path: str) -> bytes:
    with store_errors("read a secret", path):
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "rb") as file:
            state = os.fstat(handle)
            secret = file.read(4 * _BYTES)
    if state.st_uid != os.geteuid() or state.st_mode & 0o077 or not stat.S_ISREG(state.st_mode):
        raise StoreDenied(
            f"{path} is not a file that only this user can reach",
            hint="remove it; it is made anew",
        )
    if len(secret) != 2 * _BYTES:
        raise StoreError(
            f"{path} is damaged", hint="remove it when nothing of this run runs, and start again"
        )
    return secret
