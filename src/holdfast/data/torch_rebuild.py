"""The user's DataLoader again, with everything the user chose, but answering requests that we make.

A request is anything; what it means is up to the dataset that is put in. Building and opening the loader
never draws from training's generators.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from holdfast.data.worker_signals import outlive_signals_of_the_job


class Requests:
    """The sampler of a rebuilt loader. torch may call `iter` on it twice for one pass, so it keeps no
    position of its own. `begin` must be cleared when a pass is over: a cycle through the loader would
    leave its workers to the garbage collector, which ends them in an order that makes torch wait for ten
    seconds."""

    begin: Callable[[], Iterator[Any]] | None = None

    def __iter__(self) -> Iterator[Any]:
        return iter(()) if self.begin is None else self.begin()


def rebuild(
    loader: DataLoader[Any], answering: Dataset[Any], requests: Requests, worker_seeds: torch.Generator
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
            "worker_init_fn": _WorkerStart(loader.worker_init_fn),
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


class _WorkerStart:
    """Runs the user's `worker_init_fn`, for which the worker's dataset is the user's own, as it was."""

    def __init__(self, users: Callable[[int], None] | None) -> None:
        self._users = users

    def __call__(self, worker: int) -> None:
        outlive_signals_of_the_job()
        info = get_worker_info()
        if info is not None:
            wrapped: Any = info.dataset
            # It is frozen once made; hiding our wrapper is worth going round that.
            object.__setattr__(info, "dataset", wrapped.dataset)
        if self._users is not None:
            self._users(worker)
