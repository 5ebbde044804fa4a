"""Hyper-parameters of the script that a restored checkpoint overrules: said, not dropped in silence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# What a scheduler moves: then the value that it began with is the script's word.
_MOVED_FROM = {"lr": "initial_lr", "momentum": "base_momentum", "betas": "base_momentum"}
_NOT_SETTINGS = {"params", "param_names"}
_MOST = 8


def overruled(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> str:
    """ "lr is 0.1 (0.05 in the script)", for each that differs; empty if none does."""
    many = len(before) > 1
    found = [
        f"{name} is {_show(now)} ({_show(was)} in the script{f', group {number}' if many else ''})"
        for number, (script, restored) in enumerate(zip(before, after, strict=False))
        for name, was, now in _differences(script, restored)
    ]
    more = f" and {len(found) - _MOST} more" if len(found) > _MOST else ""
    return ", ".join(dict.fromkeys(found[:_MOST])) + more


def _differences(script: Mapping[str, Any], restored: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for name in script:
        if name in _NOT_SETTINGS or name in _MOVED_FROM.values() or name not in restored:
            continue
        begun = _MOVED_FROM.get(name)
        is_moved = begun is not None and begun in script and begun in restored
        was, now = (script[begun], restored[begun]) if is_moved and begun else (script[name], restored[name])
        if _plain(was) != _plain(now):
            yield name, was, now


def _plain(value: Any) -> Any:
    # A learning rate may be a tensor on one side and a number on the other; NaN is not equal to itself.
    if hasattr(value, "tolist"):
        value = value.tolist()
    return repr(list(value) if isinstance(value, (list, tuple)) else value)


def _show(value: Any) -> str:
    return repr(value.tolist() if hasattr(value, "tolist") else value)
