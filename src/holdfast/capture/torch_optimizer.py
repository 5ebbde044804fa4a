"""An optimizer's state, exactly: no hidden step to create it, no silent cast when it comes back."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import is_
from typing import Any

import torch

from holdfast.errors import IncompatibleState

# ---- Memory that a restore has replaced goes back to the system behind whoever waits for the restore.

_WORTH_A_THREAD = 64 << 20


def host_tensors(states: Iterable[object]) -> list[torch.Tensor]:
    """The host tensors in an optimizer's states, for `free_behind`. Devices keep freed memory to themselves,
    which takes no time."""
    return [
        value
        for state in states
        if isinstance(state, dict)
        for value in state.values()
        if isinstance(value, torch.Tensor) and value.device.type == "cpu"
    ]


def free_behind(replaced: list[torch.Tensor]) -> None:
    """Empty the list, which should hold the last references."""
    if sum(tensor.nbytes for tensor in replaced) < _WORTH_A_THREAD:
        return

    def let_go() -> None:
        while replaced:
            replaced.pop()

    # Without a thread they go when the caller forgets the list.
    with contextlib.suppress(RuntimeError):
        threading.Thread(target=let_go, name="holdfast-free", daemon=True).start()


# ---- Hyper-parameters of the script that a restored checkpoint overrules: said, not dropped in silence.

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


log = logging.getLogger("holdfast")
_UNNAMED = "?"


class TrackedOptimizer:
    role = "state"

    def __init__(self, key: str, optimizer: torch.optim.Optimizer) -> None:
        self.key = key
        self.optimizer = optimizer
        # The names of the tracked models' parameters by id, looked up anew when there are other parameters.
        self.names: Callable[[], Mapping[int, str]] = dict
        self._names_of: tuple[list[torch.Tensor], list[dict[str, tuple[()]]]] | None = None

    def take(self) -> dict[str, Any]:
        return self._described(self.optimizer.state_dict())

    def hold(self) -> Callable[[], dict[str, Any]]:
        """Take the state later, before the next step, but the hyper-parameters now: a scheduler may change
        them before the step that the fence holds back."""
        groups = [
            {k: list(v) if type(v) is list else v for k, v in group.items() if k != "params"}
            for group in self.optimizer.param_groups
        ]

        def later() -> dict[str, Any]:
            state = self.optimizer.state_dict()
            packed = state["param_groups"]
            state["param_groups"] = [
                {**mine, "params": group["params"]} for mine, group in zip(groups, packed, strict=True)
            ]
            return self._described(state)

        return later

    def _described(self, state: dict[str, Any]) -> dict[str, Any]:
        return {"state_dict": state, "parameters": self._group_names(), "kind": self._kind}

    @property
    def _kind(self) -> str:
        kind = type(self.optimizer)
        return f"{kind.__module__}.{kind.__qualname__}"

    def watch(self) -> Callable[[], bool]:
        """Asked at a boundary: is the state the one of now? Not if it was replaced as a whole, as by
        `load_state_dict`, or if a group of parameters was added."""
        state, sizes = self.optimizer.state, self._sizes()
        count, first = len(state), list(next(iter(state.values()), {}).values())

        def is_same() -> bool:
            now = self.optimizer.state
            if now is not state or len(now) != count or self._sizes() != sizes:
                return False
            present: list[Any] = list(next(iter(now.values()), {}).values())
            return len(present) == len(first) and all(map(is_, present, first))

        return is_same

    def _sizes(self) -> list[int]:
        return [len(group["params"]) for group in self.optimizer.param_groups]

    def places_of_tensors(self) -> dict[int, tuple[dict[str, Any], str]] | None:
        """Where hyper-parameters that are tensors hang; None where `state_dict` is more than torch's own."""
        optimizer = self.optimizer
        if (
            type(optimizer).state_dict is not torch.optim.Optimizer.state_dict
            or optimizer._optimizer_state_dict_pre_hooks
            or optimizer._optimizer_state_dict_post_hooks
        ):
            return None
        return {
            id(value): (group, name)
            for group in optimizer.param_groups
            for name, value in group.items()
            if isinstance(value, torch.Tensor)
        }

    def fenced_parameters(self) -> set[int]:
        """Those that nothing but a step changes. A frozen one may belong to a momentum encoder, which the
        forward pass moves."""
        params = (p for group in self.optimizer.param_groups for p in group["params"])
        return {id(p) for p in params if p.requires_grad}

    def _group_names(self) -> list[dict[str, tuple[()]]]:
        # As keys, not as values: keys are part of the skeleton, which is written once and not at every save.
        groups = self.optimizer.param_groups
        parameters = [p for group in groups for p in group["params"]]
        known = self._names_of
        if (
            known is None
            or len(known[0]) != len(parameters)
            or list(map(len, known[1])) != self._sizes()
            or not all(map(is_, known[0], parameters))
        ):
            names = self.names()
            # A parameter of a model that is not tracked is known by its shape alone.
            described = [
                {
                    f"{names.get(id(p), f'{_UNNAMED}{list(p.shape)}')}#{i}": ()
                    for i, p in enumerate(g["params"])
                }
                for g in groups
            ]
            known = self._names_of = (parameters, described)
        return known[1]

    def check(self, state: Any) -> None:
        """State is keyed by position: the same parameters in another order would load swapped, silently."""
        self._check_kind(state)
        mine, stored = self._group_names(), state["parameters"]
        if len(mine) != len(stored):
            raise self._mismatch(f"{len(stored)} parameter groups in the checkpoint, {len(mine)} here")
        for group, (here, there) in enumerate(zip(mine, stored, strict=True)):
            if len(here) != len(there):
                raise self._mismatch(
                    f"group {group} has {len(there)} parameters in the checkpoint, {len(here)} here"
                )
            for a, b in zip(here, there, strict=True):
                # Named here and unnamed there: another set of models is tracked; nothing can be compared.
                if a != b and a.startswith(_UNNAMED) == b.startswith(_UNNAMED):
                    raise self._mismatch(f"group {group} has {b!r} in the checkpoint where {a!r} stands here")

    def _check_kind(self, state: Any) -> None:
        """Another kind of optimizer would take over groups that lack its own settings, and fail at its first
        step. The same kind may lack some: a newer torch fills them in."""
        kind = state.get("kind", self._kind)
        groups = state["state_dict"]["param_groups"]
        if kind != self._kind and any(self.optimizer.defaults.keys() - group.keys() for group in groups):
            raise IncompatibleState(
                f"checkpoint does not fit {self.key!r}: it was saved from {kind}, and here is {self._kind}",
                hint="use the same optimizer, or start in a new folder with the weights of this run: "
                "model.load_state_dict(holdfast.load_weights(path))",
            )

    def _mismatch(self, what: str) -> IncompatibleState:
        return IncompatibleState(
            f"checkpoint does not fit {self.key!r}: {what}",
            hint="give the optimizer the same parameters in the same order as when it was saved",
        )

    def apply(self, state: Any) -> None:
        saved = state["state_dict"]
        replaced = host_tensors(self.optimizer.state.values())
        before = [dict(group) for group in self.optimizer.param_groups]
        self.optimizer.load_state_dict(saved)
        self._undo_casts(saved["state"])
        for group, was in zip(self.optimizer.param_groups, before, strict=True):
            # A learning rate that is a tensor lives where the script made it: captured graphs read it there.
            for name, value in group.items():
                if isinstance(value, torch.Tensor) and isinstance(was.get(name), torch.Tensor):
                    group[name] = value.to(was[name].device)
        free_behind(replaced)
        if differences := overruled(before, self.optimizer.param_groups):
            log.warning(
                "holdfast: %r goes on as it was saved: %s; to change it, set optimizer.param_groups inside "
                "the with block",
                self.key,
                differences,
            )

    def _undo_casts(self, saved: Mapping[int, Any]) -> None:
        # Optimizer.load_state_dict casts every state tensor to its parameter's dtype: float32 moments of
        # bfloat16 parameters would lose bits (pytorch issue 43706).
        params = [p for group in self.optimizer.param_groups for p in group["params"]]
        for position, entry in saved.items():
            if not (isinstance(position, int) and isinstance(entry, Mapping)):
                continue
            live = self.optimizer.state[params[position]]
            for name, value in entry.items():
                if name in live:
                    live[name] = _uncast(value, live[name])


def _uncast(saved: Any, live: Any) -> Any:
    """What was loaded, but with the dtype that was saved; histories (LBFGS) are lists of tensors."""
    if isinstance(saved, torch.Tensor) and isinstance(live, torch.Tensor):
        return live if live.dtype == saved.dtype else saved.to(device=live.device)
    if type(saved) in (list, tuple) and type(saved) is type(live) and len(saved) == len(live):
        return type(saved)(map(_uncast, saved, live))
    if isinstance(saved, dict) and isinstance(live, dict) and saved.keys() == live.keys():
        return {name: _uncast(value, live[name]) for name, value in saved.items()}
    # Text in a state comes back from torch as "<generator object ...>".
    return saved if type(saved) is str else live
