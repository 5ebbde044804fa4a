"""A file or folder that appears under its name whole and durable, or not at all. Never replaces anything."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from holdfast.errors import SetupError
from holdfast.stores.os_errors import store_errors
from holdfast.stores.posix import PosixIO


def require_new(path: Path) -> None:
    """SetupError if `path` is taken, or has no folder to stand in. Asked before any long work."""
    if os.path.lexists(path):
        raise SetupError(f"{path} exists already", hint="nothing is overwritten: choose another name")
    if not path.absolute().parent.is_dir():
        raise SetupError(f"there is no folder {path.absolute().parent}", hint="make it first")


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Write to the file that is yielded; on a clean exit it is durable and has its name."""
    part = _part(path)
    with _named_after(path, part):
        try:
            with open(part, "xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            part.unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Fill the folder that is yielded; on a clean exit everything in it is durable and it has its name."""
    part = _part(path)
    with _named_after(path, part):
        try:
            part.mkdir()
            yield part
            for inside in [*sorted(part.rglob("*")), part]:
                _fsync(inside)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise


@contextlib.contextmanager
def _named_after(path: Path, part: Path) -> Iterator[None]:
    require_new(path)
    parent = path.absolute().parent
    with store_errors(f"write {path.name}", str(parent)):
        yield
        directory = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # Refuses an existing name, also one that has appeared since we looked.
            PosixIO().rename(directory, part.name, path.name)
            os.fsync(directory)
        except OSError:
            if part.is_dir():
                shutil.rmtree(part, ignore_errors=True)
            else:
                part.unlink(missing_ok=True)
            raise
        finally:
            os.close(directory)


def _part(path: Path) -> Path:
    return path.absolute().parent / f".{path.name}.{os.urandom(4).hex()}.part"


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
