"""The user's DataLoader again, with everything the user chose, but answering requests that we make.

A request is anything; what it means is up to the dataset that is put in. Building and opening the loader
never draws from training's generators.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info
from torch.utils.data._utils.worker import _generate_state


class Requests:
    """The sampler of a rebuilt loader. torch may call `iter` on it twice for one pass, so it keeps no
    position of its own. `begin` must be cleared when a pass is over: a cycle through the loader would
    leave its workers to the garbage collector, which ends them in an order that makes torch wait for ten
    seconds."""

    begin: Callable[[], Iterator[Any]] | None = None

    def __iter__(self) -> Iterator[Any]:
        return iter(()) if self.begin is None else self.begin()


def rebuild(
    loader: DataLoader[Any], answering: Dataset[Any], requests: Requests, worker_seeds: torch.Generator | None
) -> DataLoader[Any]:
    if not loader.in_order:
        warnings.warn(
            "in_order=False is not used: a position in the data needs batches in a fixed order", stacklevel=6
        )
    options: dict[str, Any] = {}
    if loader.num_workers > 0:
        options = {
            "multiprocessing_context": loader.multiprocessing_context,
            "prefetch_factor": loader.prefetch_factor,
            "persistent_workers": loader.persistent_workers,
            "worker_init_fn": WorkerStart(loader.worker_init_fn),
        }
    if loader.pin_memory_device:
        options["pin_memory_device"] = loader.pin_memory_device
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what there is to warn of, the user's own loader has said already
        return DataLoader(
            answering,
            batch_size=None,
            sampler=requests,
            collate_fn=_as_it_is,
            num_workers=loader.num_workers,
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            generator=worker_seeds,
            **options,
        )


def _as_it_is(answer: Any) -> Any:
    return answer


class WorkerStart:
    """Runs the user's `worker_init_fn`, for which the worker's dataset is the user's own, as it was.

    With a `base_seed` the worker begins as the one began that it stands in for after a restart.
    """

    def __init__(self, users: Callable[[int], None] | None) -> None:
        self._users = users
        self.base_seed: int | None = None

    def __call__(self, worker: int) -> None:
        outlive_signals_of_the_job()
        info = get_worker_info()
        if info is not None:
            wrapped: Any = info.dataset
            # It is frozen once made; hiding our wrapper is worth going round that.
            object.__setattr__(info, "dataset", wrapped.dataset)
        if self.base_seed is not None and info is not None:
            object.__setattr__(info, "seed", self.base_seed + worker)
            _seed_as_torch_does(self.base_seed, worker)
        if self._users is not None:
            self._users(worker)


def _seed_as_torch_does(base_seed: int, worker: int) -> None:
    """The first lines of torch.utils.data._utils.worker._worker_loop."""
    random.seed(base_seed + worker)
    torch.manual_seed(base_seed + worker)
    np.random.seed(_generate_state(base_seed, worker))  # type: ignore[no-untyped-call]


class Opening:
    """Opens a rebuilt loader, and knows the seed that its workers began with."""

    def __init__(self, rebuilt: DataLoader[Any], users: DataLoader[Any]) -> None:
        self._rebuilt = rebuilt
        self._generator = users.generator
        self.base_seed: int | None = None

    def fresh(self) -> Iterator[Any]:
        """As torch opens it, drawing where torch draws."""
        opened = open_workers(self._rebuilt)
        self.base_seed = getattr(opened, "_base_seed", None)
        return opened

    def again(self, base_seed: int | None) -> Iterator[Any]:
        """With workers that begin as they did when `base_seed` was drawn. Draws from nobody's generator."""
        start = self._rebuilt.worker_init_fn
        self._rebuilt.generator = torch.Generator()
        if isinstance(start, WorkerStart):
            start.base_seed = base_seed
        try:
            opened = open_workers(self._rebuilt)
        finally:
            self._rebuilt.generator = self._generator
            if isinstance(start, WorkerStart):
                start.base_seed = None
        self.base_seed = base_seed
        return opened

    @property
    def is_running(self) -> bool:
        """Whether workers of an earlier pass are there, who go on with their streams."""
        return self._rebuilt._iterator is not None

    def close(self) -> None:
        end_workers(self._rebuilt)


_LAST_OPENED: weakref.WeakKeyDictionary[DataLoader[Any], weakref.ref[Any]] = weakref.WeakKeyDictionary()


def open_workers(rebuilt: DataLoader[Any]) -> Iterator[Any]:
    opened = iter(rebuilt)
    _LAST_OPENED[rebuilt] = weakref.ref(opened)
    return opened


def end_workers(rebuilt: DataLoader[Any]) -> None:
    """Workers are told to end: persistent ones, and those of a pass that was left in its middle and that the
    script still holds. Left to the interpreter's exit they would get SIGTERM, which they outlive for the sake
    of a last save."""
    last = _LAST_OPENED.pop(rebuilt, None)
    for iterator in (rebuilt._iterator, last() if last else None):
        if iterator is not None and hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown_workers()
    rebuilt._iterator = None


# ---- Loader workers outlive signals that were meant for their training.
#
# A scheduler signals every process of a job. A worker that dies of it takes the training down before that
# can finish its step and save: torch raises in the main process when a worker is killed.

# A worker that was told to end and is not ended by its training goes by itself. Long enough for a last step;
# a parent that shuts a stuck worker down by SIGTERM waits for this long.
PATIENCE_SECONDS = 60.0


def outlive_signals_of_the_job() -> None:
    """In a worker's main thread, before the user's own `worker_init_fn`, whose handlers win."""
    signal.signal(signal.SIGTERM, _leave_later)
    signal.signal(signal.SIGINT, _not_for_me)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _not_for_me)


def _leave_later(number: int, frame: FrameType | None) -> None:
    if not any(isinstance(thread, _Leaving) for thread in threading.enumerate()):
        _Leaving(PATIENCE_SECONDS).start()


def _not_for_me(number: int, frame: FrameType | None) -> None:
    """A function and not SIG_IGN: programs that a dataset starts would inherit that."""


class _Leaving(threading.Timer):
    def __init__(self, seconds: float) -> None:
        # With code 0: torch takes any other end for a failure and raises in the middle of a last save.
        super().__init__(seconds, os._exit, (0,))
        self.daemon = True
