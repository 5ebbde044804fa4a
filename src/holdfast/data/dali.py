"""NVIDIA DALI pipelines that continue at any batch: we say which samples come and on which random numbers.

DALI reads what an external source hands it; this is such a source. Neither DALI nor torch is imported here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from holdfast.data.order import InSequence, shuffled
from holdfast.data.positioned import Positioned
from holdfast.data.seeding import FOR_SAMPLES, derive, index_seed
from holdfast.data.split import Share, turns_of_order

Sample = Callable[[int, np.random.Generator], Sequence[Any]]


def dali_loader(
    build: Callable[[Callable[[], Any]], Any],
    sample: Sample,
    *,
    size: int,
    batch: int,
    seed: int,
    shuffle: bool = True,
    drop_last: bool = False,
    rank: int = 0,
    world: int = 1,
) -> Positioned:
    """A DALI pipeline as a loader for `run.batches`.

    `sample(index, rng)` gives the arrays that the pipeline is fed for one sample, such as the encoded
    image and where to crop it; drawn from `rng`, they are the same after every resume. `build(source)`
    makes the pipeline around `fn.external_source(source=source, num_outputs=...)`. Batches are what
    `pipeline.run()` returns::

        @pipeline_def(batch_size=64, num_threads=4, device_id=0)
        def build(source):
            encoded, left, mirror = fn.external_source(source=source, num_outputs=3)
            images = fn.decoders.image(encoded, device="mixed")
            return fn.crop_mirror_normalize(images, crop=(224, 224), crop_pos_x=left, mirror=mirror)

        def sample(index, rng):
            return np.fromfile(files[index], np.uint8), np.float32(rng.random()), np.int32(rng.integers(2))

        loader = dali_loader(build, sample, size=len(files), batch=64, seed=0)
    """
    share = Share(batch=batch, rank=rank, world=world, drop_short=drop_last)

    def open_at(epoch: int, first: int) -> Iterator[Any]:
        order = shuffled(size, seed, epoch) if shuffle else InSequence(size)
        turns = turns_of_order(order, min(size, first * share.stride), share)
        base = derive(FOR_SAMPLES, seed, epoch)

        def source() -> tuple[list[Any], ...]:
            indices = next(turns).items  # its StopIteration is how DALI learns of the end
            made = [sample(i, np.random.default_rng(index_seed(base, i))) for i in indices]
            return tuple(list(column) for column in zip(*made, strict=True))

        pipeline = build(source)
        pipeline.build()
        while True:
            try:
                outputs = pipeline.run()
            except StopIteration:
                return
            yield outputs

    return Positioned(open_at, batches=share.turns_in(size))
