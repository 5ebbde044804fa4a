"""The real file system behind StoreIO: one method, one system call, opened so that nothing can be slipped in.

Never follows a symbolic link below the store's root, never blocks on a pipe, never widens the umask.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import stat

from holdfast.stores.io import Kind
from holdfast.stores.ownership import require_own

_OPEN_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
# Python before 3.12 knows O_DIRECT only on Linux; elsewhere writes simply go through the cache.
_O_DIRECT: int = getattr(os, "O_DIRECT", 0)
_RENAME_NOREPLACE = 1
_INTERRUPTIONS = 100
_NOT_SUPPORTED = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENOTTY}
_libc = ctypes.CDLL(None, use_errno=True)

# Lock files this process holds, by (device, inode). A POSIX record lock does not protect a process from
# itself, and closing any descriptor of the file would drop it; so a held one is never opened again.
_held: dict[tuple[int, int], tuple[int, int]] = {}


class PosixIO:
    """Linux system calls. Stateless, but for the locks of this process.

    `own`: everything below the root must be this user's, and is made for this user alone. For folders on a
    node's own disk or memory, where others can make a folder first.
    """

    def __init__(self, *, direct: bool = True, own: bool = False) -> None:
        self._direct_flag = _O_DIRECT if direct else 0
        self._own = own

    def open_root(self, path: str, *, create: bool) -> int:
        if create:
            _make_path(os.path.abspath(path))
        # The root itself may be a link: people point runs/ at scratch. Nothing below it may.
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def open_directory(self, parent: int, name: str) -> int:
        return self._owned(os.open(name, os.O_RDONLY | os.O_DIRECTORY | _OPEN_FLAGS, dir_fd=parent), name)

    def _owned(self, handle: int, name: str) -> int:
        if self._own:
            try:
                require_own(os.fstat(handle), name)
            except BaseException:
                os.close(handle)
                raise
        return handle

    def make_directory(self, parent: int, name: str) -> None:
        os.mkdir(name, 0o700 if self._own else 0o777, dir_fd=parent)

    def create(self, parent: int, name: str, *, direct: bool = False) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN_FLAGS
        file = os.open(name, flags, 0o600 if self._own else 0o666, dir_fd=parent)
        # Not with open(): where O_DIRECT is refused, open() has already made the file when it says so.
        if direct:
            self._try_direct(file)
        return file

    def open_read(self, parent: int, name: str, *, direct: bool = False) -> int:
        file = self._owned(os.open(name, os.O_RDONLY | _OPEN_FLAGS, dir_fd=parent), name)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise OSError(errno.ELOOP, "not a regular file", name)
        if direct:
            self._try_direct(file)
        return file

    def _try_direct(self, file: int) -> None:
        # Whatever the reason for a refusal, an ordinary file is correct, only slower.
        if self._direct_flag:
            with contextlib.suppress(OSError):
                fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | self._direct_flag)

    def _leave_direct(self, file: int) -> bool:
        """Whether there was anything to leave: the file was direct until now."""
        flags = fcntl.fcntl(file, fcntl.F_GETFL)
        if not flags & self._direct_flag:
            return False
        fcntl.fcntl(file, fcntl.F_SETFL, flags & ~self._direct_flag)
        return True

    def preallocate(self, file: int, size: int) -> None:
        # Not os.posix_fallocate: glibc emulates it by writing every block where it is not native.
        for _ in range(_INTERRUPTIONS if size else 0):
            if _libc.fallocate(file, 0, ctypes.c_int64(0), ctypes.c_int64(size)) == 0:
                return
            code = ctypes.get_errno()
            if code in _NOT_SUPPORTED:
                return
            # A scheduler's warning signal must not cost the very save it asks for.
            if code != errno.EINTR:
                raise OSError(code, os.strerror(code))

    def write_at(self, file: int, data: memoryview, offset: int) -> int:
        try:
            return os.pwrite(file, data, offset)
        except OSError as error:
            if error.errno != errno.EINVAL or not self._leave_direct(file):
                raise
            return os.pwrite(file, data, offset)

    def read_at(self, file: int, buffer: memoryview, offset: int) -> int:
        try:
            return os.preadv(file, [buffer], offset)
        except OSError as error:
            if error.errno != errno.EINVAL or not self._leave_direct(file):
                raise
            return os.preadv(file, [buffer], offset)

    def truncate(self, file: int, size: int) -> None:
        os.ftruncate(file, size)

    def fsync(self, file: int) -> None:
        os.fsync(file)

    def fsync_directory(self, directory: int) -> None:
        try:
            os.fsync(directory)
        except OSError as error:
            # How some network and FUSE file systems say that their names need no syncing.
            if error.errno not in _NOT_SUPPORTED:
                raise

    def size(self, file: int) -> int:
        return os.fstat(file).st_size

    def close(self, handle: int) -> None:
        os.close(handle)

    def rename(self, parent: int, old: str, new: str) -> None:
        args = (parent, os.fsencode(old), parent, os.fsencode(new), _RENAME_NOREPLACE)
        if _libc.renameat2(*args) == 0:
            return
        code = ctypes.get_errno()
        if code not in _NOT_SUPPORTED:
            raise OSError(code, os.strerror(code), old, None, new)
        # File systems without the flag (NFS, some FUSE): link() refuses an existing name just as well.
        try:
            os.link(old, new, src_dir_fd=parent, dst_dir_fd=parent, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _NOT_SUPPORTED | {errno.EPERM, errno.EMLINK}:
                raise
            self._rename_without_links(parent, old, new)
        else:
            os.unlink(old, dir_fd=parent)

    def _rename_without_links(self, parent: int, old: str, new: str) -> None:
        # Look, then leap: safe here because the store never lets two processes use one name.
        if self.kind(parent, new) is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
        os.rename(old, new, src_dir_fd=parent, dst_dir_fd=parent)

    def replace(self, parent: int, old: str, new: str) -> None:
        os.replace(old, new, src_dir_fd=parent, dst_dir_fd=parent)

    def unlink(self, parent: int, name: str) -> None:
        os.unlink(name, dir_fd=parent)

    def remove_directory(self, parent: int, name: str) -> None:
        os.rmdir(name, dir_fd=parent)

    def list_names(self, directory: int) -> list[str]:
        return os.listdir(directory)

    def kind(self, parent: int, name: str) -> Kind | None:
        try:
            mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return None
        if stat.S_ISREG(mode):
            return "file"
        return "directory" if stat.S_ISDIR(mode) else "other"

    def free_bytes(self, directory: int) -> int:
        state = os.fstatvfs(directory)
        return state.f_bavail * state.f_frsize

    def append(self, parent: int, name: str, data: bytes) -> None:
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | _OPEN_FLAGS, 0o666, dir_fd=parent)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise OSError(errno.ELOOP, "not a regular file", name)
            os.write(file, data)
        finally:
            os.close(file)

    def lock(self, parent: int, name: str) -> int | None:
        there = _inode(parent, name)
        if there in _held and _held[there][1] == os.getpid():
            raise BlockingIOError(errno.EAGAIN, "held by this very process", name)
        file = os.open(name, os.O_RDWR | os.O_CREAT | _OPEN_FLAGS, 0o666, dir_fd=parent)
        try:
            # lockf and not flock: a forked DataLoader worker that outlives a killed trainer would keep
            # a flock alive; a record lock dies with its process.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(file)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise BlockingIOError(errno.EAGAIN, "held by another process", name) from error
            if error.errno in _NOT_SUPPORTED | {errno.ENOLCK}:
                return None
            raise
        held = os.fstat(file)
        _held[held.st_dev, held.st_ino] = (file, os.getpid())
        return file

    def unlock(self, handle: int) -> None:
        for inode, (file, owner) in list(_held.items()):
            # A forked child holds a copy of the descriptor, not the lock: nothing of it is the child's.
            if file == handle and owner == os.getpid():
                del _held[inode]
                os.close(file)


def _inode(parent: int, name: str) -> tuple[int, int] | None:
    try:
        state = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return state.st_dev, state.st_ino


def _make_path(path: str) -> None:
    parent = os.path.dirname(path)
    if not os.path.isdir(path):
        _make_path(parent)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)
    elif not os.access(parent, os.R_OK):
        return
    # Also when it existed: its maker may have been killed before it made the name durable.
    directory = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    except OSError as error:
        # An automounter's folder, for instance: its names are not on any disk.
        if error.errno not in _NOT_SUPPORTED:
            raise
    finally:
        os.close(directory)
