"""Copies a checkpoint to an outer tier, says so after each file, and is killed by whoever started it."""

import sys

from holdfast.stores.base import ImageSource
from holdfast.stores.directory import DirectoryStore
from holdfast.tiers.drain import Drain, FlushTier
from holdfast.tiers.ladder import Ladder, NamedTier
from holdfast.tiers.target import FolderTarget


class Talking(FolderTarget):
    def put(self, name: str, source: ImageSource, *args: object, **more: object) -> None:
        print(f"begin {source.name}", flush=True)
        super().put(name, source, *args, **more)  # type: ignore[arg-type]
        print(f"done {source.name}", flush=True)


def main(near: str, far: str) -> None:
    source, store = DirectoryStore(near), DirectoryStore(far, uuid=DirectoryStore(near).uuid)
    store.claim()
    ladder = Ladder([NamedTier("near", source), NamedTier("far", store)])
    # The first file passes at once; the second would take a minute.
    drain = Drain(ladder, [FlushTier("far", Talking(store), bytes_per_second=1 << 20)])
    drain.catch_up()
    drain.wait_idle(120)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
