"""Whether the work of a run is done, as its newest checkpoint says. Reads manifests and sizes, no data."""

from __future__ import annotations

from holdfast.checkpoints.find import committed
from holdfast.checkpoints.verify import verify
from holdfast.stores.base import Store


def is_complete(store: Store) -> bool:
    """True only if the newest checkpoint of all is whole and was saved when the training had ended.

    A damaged newest one is no answer: whoever asks should run, so that restoring can sort it out.
    """
    newest = next(iter(committed(store)), None)
    return (
        newest is not None
        and newest.manifest is not None
        and newest.manifest.progress.get("complete") is True
        and verify(store, newest, deep=False).is_whole
    )
