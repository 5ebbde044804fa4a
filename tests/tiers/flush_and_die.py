"""Copies a checkpoint to an outer tier, says so after each file, and is killed by whoever started it."""

import sys
from typing import Any

from holdfast.format.manifest import FileRecord
from holdfast.stores.base import ImageSource
from holdfast.stores.store import CheckpointStore
from holdfast.tiers.drain import Drain, FlushTier
from holdfast.tiers.ladder import Ladder, NamedTier


class Talking(CheckpointStore):
    def write(self, name: str, source: ImageSource, **more: Any) -> FileRecord:
        print(f"begin {source.name}", flush=True)
        record = super().write(name, source, **more)
        print(f"done {source.name}", flush=True)
        return record


def main(near: str, far: str) -> None:
    source, store = CheckpointStore(near), Talking(far, uuid=CheckpointStore(near).uuid)
    store.claim()
    ladder = Ladder([NamedTier("near", source), NamedTier("far", store)])
    # The first file passes at once; the second would take a minute.
    drain = Drain(ladder, [FlushTier("far", store, bytes_per_second=1 << 20)])
    drain.catch_up()
    drain.wait_idle(120)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
