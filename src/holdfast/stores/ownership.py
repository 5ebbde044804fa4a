"""Whose a file or folder is, before anything in it is believed.

On a shared machine /dev/shm, /tmp and a node's own disk are open to everybody: a folder with the right name
may have been put there by another user, with a checkpoint inside that a run would resume from. What is local
to a node must therefore belong to this user. A run's own folder may be shared with colleagues by choice, but
not where anybody could have made it first.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import pwd
import stat
from collections.abc import Iterator

from holdfast.errors import StoreDenied
from holdfast.stores.os_errors import store_errors

log = logging.getLogger("holdfast")
TRUST, EVERYBODY = "HOLDFAST_TRUST", "everybody"
_said: set[str] = set()
# What a network file system makes of root.
_NOBODY = 65534


def require_own(state: os.stat_result, what: str) -> None:
    """PermissionError unless it belongs to this user and nobody outside the owner's group can change it."""
    if state.st_uid != os.geteuid() or stat.S_IMODE(state.st_mode) & 0o002:
        raise PermissionError(
            errno.EACCES, f"it belongs to {_name(state.st_uid)} or others can change it", what
        )


def make_private(path: str) -> None:
    """A directory for this user alone. Somebody else's, or an open one, is refused: it could be a trap."""
    with store_errors("make a folder", path):
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
    if (why := not_private(path)) is not None:
        raise StoreDenied(
            f"{path} is not a folder that only this user can reach: {why}",
            hint="remove it, or ask its owner to; checkpoints there are private",
        )


def not_private(path: str) -> str | None:
    """Why the folder at `path` cannot be believed; None if it is this user's alone.

    FileNotFoundError if there is none.
    """
    state = os.lstat(path)
    if not stat.S_ISDIR(state.st_mode):
        return "it is not a folder"
    if state.st_uid != os.geteuid():
        return f"it belongs to {_name(state.st_uid)}"
    if state.st_mode & 0o022:
        return "others can write to it"
    if state.st_mode & 0o055:
        # Made by an earlier version; nobody but its owner could put anything into it.
        with store_errors("make private", path):
            os.chmod(path, 0o700)
    return None


def refuse_planted(path: str) -> None:
    """StoreDenied if a run's folder lies where anybody may make one (such as /tmp), and another user did.
    HOLDFAST_TRUST names users whose folders are welcome, separated by commas."""
    for parent, folder in _steps_to(path):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            above, here = os.stat(parent), os.lstat(folder)
            if above.st_mode & stat.S_IWOTH and here.st_uid not in _welcome():
                owner = _name(here.st_uid)
                raise StoreDenied(
                    f"{folder} belongs to {owner}, and everybody can make folders in {parent}",
                    hint=f"use a folder of your own; if you trust {owner}, set {TRUST}={owner}",
                )


def say_open(path: str) -> None:
    """A warning, once, if everybody can put checkpoints into the run's folder, or another one in its place.

    Not refused: volumes of containers are often made like that, and nobody else is there."""
    if EVERYBODY in _trusted():
        return
    for parent, folder in [(os.path.realpath(path), ""), *_steps_to(path)]:
        with contextlib.suppress(OSError):
            mode = os.stat(parent).st_mode
            if mode & stat.S_IWOTH and not mode & stat.S_ISVTX and parent not in _said:
                _said.add(parent)
                what = f"replace {folder}" if folder else "put checkpoints into it that this run resumes from"
                log.warning(
                    "holdfast: every user of this machine can change %s (mode %o), and so %s; chmod o-w it,"
                    " or set %s=%s where nobody else is",
                    parent, stat.S_IMODE(mode), what, TRUST, EVERYBODY,
                )  # fmt: skip


def _steps_to(path: str) -> Iterator[tuple[str, str]]:
    """Every folder on the way to `path`, with its parent before it."""
    folder = os.path.realpath(path)
    while (parent := os.path.dirname(folder)) != folder:
        yield parent, folder
        folder = parent


def _trusted() -> list[str]:
    return [word for part in os.environ.get(TRUST, "").split(",") if (word := part.strip())]


def _welcome() -> set[int]:
    mine = os.geteuid()
    welcome = {mine, 0} | ({_NOBODY} if mine == 0 else set())
    for word in _trusted():
        with contextlib.suppress(KeyError):
            welcome.add(int(word) if word.isdecimal() else pwd.getpwnam(word).pw_uid)
    return welcome


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
