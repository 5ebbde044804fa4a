"""The user's frames around a training loop: which they are, what their names hold, what their source says."""

from __future__ import annotations

import ast
import linecache
import os
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import (
    BuiltinFunctionType,
    FrameType,
    FunctionType,
    MethodType,
    MethodWrapperType,
    ModuleType,
)
from typing import Any

from holdfast.engine.loop_source import Carried, assignments, carried_at

_OWN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_LIBRARIES = tuple(
    os.path.join(path, "")
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
    if (path := sysconfig.get_paths().get(name))
)
_OPTIMIZED = 0x1  # CO_OPTIMIZED: a function, whose f_locals is a copy


@dataclass(frozen=True)
class Place:
    """A file and a line, as people look them up."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)} line {self.line}"


@dataclass(frozen=True)
class Scope:
    """One of the user's frames, at one moment: its names and where it stands. No frame is kept."""

    file: str
    line: int
    names: dict[str, Any]
    carried: Carried

    def made_at(self, name: str) -> Place:
        """Where the user gave this name its value; else where the frame stands."""
        return Place(self.file, made_in(self.file).get(name.split("[")[0], self.line))


def is_users(file: str) -> bool:
    """Whether code in this file was written by whoever trains, not by us, torch or Python."""
    packaged = "/site-packages/" in file or "/dist-packages/" in file
    return not packaged and not file.startswith((_OWN, "<frozen", *_LIBRARIES))


def user_scopes(frame: FrameType | None) -> list[Scope]:
    """The user's frames from the loop outward."""
    found = []
    while frame is not None:
        file = frame.f_code.co_filename
        if is_users(file):
            found.append(Scope(file, frame.f_lineno, _names(frame), _carried(file, frame.f_lineno)))
        frame = frame.f_back
    return found


def user_place(frame: FrameType | None) -> Place | None:
    """Where the user's code called us."""
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return Place(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return None


def _names(frame: FrameType) -> dict[str, Any]:
    found = dict(_interesting(frame.f_locals))
    if frame.f_code.co_flags & _OPTIMIZED and sys.version_info < (3, 13):
        # Python keeps this copy with the frame: the batch and activations of this step would live on in it.
        frame.f_locals.clear()
    return found


def _interesting(names: Any) -> Iterator[tuple[str, Any]]:
    for name, value in list(names.items()):
        if not name.startswith("__") and not isinstance(value, (ModuleType, type)) and not _is_code(value):
            yield name, value


def _is_code(value: Any) -> bool:
    return isinstance(value, (FunctionType, BuiltinFunctionType, MethodType, MethodWrapperType))


@lru_cache(maxsize=64)
def _carried(file: str, line: int) -> Carried:
    tree = tree_of(file)
    return Carried() if tree is None else carried_at(tree, line)


@lru_cache(maxsize=16)
def made_in(file: str) -> dict[str, int]:
    """The lines that give names their values."""
    tree = tree_of(file)
    return {} if tree is None else assignments(tree)


@lru_cache(maxsize=16)
def tree_of(file: str) -> ast.AST | None:
    """The parsed source of a file, or of a notebook's cell; None where there is none."""
    source = "".join(linecache.getlines(file))
    try:
        return ast.parse(source) if source else None
    except SyntaxError:
        return None
