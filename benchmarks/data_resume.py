"""How long it takes to continue at 90% of a five-million-sample epoch, and how large the position is.

Compared with what scripts do without help: skip the batches that were seen.
"""

from __future__ import annotations

import json
import time
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from holdfast.data.digest import with_indices
from holdfast.data.torch_feed import Feed
from options import parse_options
from scoreboard import Scoreboard

SAMPLES = 5_000_000
BATCH = 64
SKIPPED = SAMPLES * 9 // 10 // BATCH


class Numbers(Dataset[torch.Tensor]):
    """The cheapest dataset there is, which flatters those that load what they throw away."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)


def loader(workers: int) -> DataLoader[Any]:
    return DataLoader(Numbers(), batch_size=BATCH, shuffle=True, num_workers=workers)


def state_at_90_percent() -> dict[str, Any]:
    feed = Feed(loader(0), name="train", seed=None)
    next(feed.batches(3))
    state = feed.state_dict()
    generator = torch.Generator().manual_seed(state["source"]["order"]["seed"])
    handed_out = torch.randperm(SAMPLES, generator=generator)[: SKIPPED * BATCH]
    state["position"] |= {"consumed": SKIPPED * BATCH, "digest": with_indices(0, handed_out.tolist())}
    return state


def seconds_until_first_batch(batches: Any) -> float:
    begin = time.perf_counter()
    next(iter(batches()))
    return time.perf_counter() - begin


def main() -> None:
    options = parse_options(__doc__)
    torch.set_num_threads(1)
    board = Scoreboard("data_resume", f"First batch after a resume at 90% of {SAMPLES:,} samples", options)
    state = state_at_90_percent()
    for workers in (0, 2):

        def resume(workers: int = workers) -> Any:
            feed = Feed(loader(workers), name="train", seed=None)
            feed.load_state_dict(state)
            return feed.batches(3)

        def bare(workers: int = workers) -> Any:
            return loader(workers)

        starts = [seconds_until_first_batch(bare) for _ in range(options.repeats)]
        ours = [seconds_until_first_batch(resume) for _ in range(options.repeats)]
        board.add("bare DataLoader", f"{workers} workers: first batch of an epoch", "s", starts)
        board.add("holdfast", f"{workers} workers: first batch at 90%", "s", ours)
        extra = board.rows[-1].median - board.rows[-2].median
        board.at_most(f"{workers} workers: beyond the loader's own start", extra, 1.0, "s")
    few = 2000  # of the 70,312 to be skipped; the rest is multiplied
    begin = time.perf_counter()
    for _ in islice(loader(0), few):
        pass
    board.add(
        "skipping batches",
        "0 workers: first batch at 90%",
        "s",
        [(time.perf_counter() - begin) * SKIPPED / few],
    )
    board.notes.append(f"the position is {len(json.dumps(state))} bytes of JSON")
    board.at_most("the position, against 1 kB", len(json.dumps(state)) / 1000, 1.0)
    board.finish()


if __name__ == "__main__":
    main()
