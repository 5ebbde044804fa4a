"""A DALI pipeline that continues in the middle of an epoch. Needs nvidia-dali; runs on its CPU backend.

python examples/dali_pipeline.py
"""

from __future__ import annotations

import numpy as np
from nvidia.dali import fn, pipeline_def, types

from holdfast.data.dali import dali_loader
from holdfast.data.torch_feed import Feed

IMAGES = np.random.RandomState(0).randint(0, 256, (100, 40, 40, 3), dtype=np.uint8)


def sample(index: int, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """What the pipeline is fed for one image: its pixels, where to crop, whether to mirror."""
    return IMAGES[index], np.float32(rng.random()), np.int32(rng.integers(2))


@pipeline_def(batch_size=16, num_threads=2, device_id=None)
def build(source):
    images, left, mirror = fn.external_source(source=source, num_outputs=3)
    return fn.crop_mirror_normalize(images, crop=(32, 32), crop_pos_x=left, mirror=mirror, dtype=types.FLOAT)


def main() -> None:
    # In a training script `run.batches(loader)` does what Feed does here.
    loader = dali_loader(build, sample, size=len(IMAGES), batch=16, seed=0)
    first = Feed(loader, name="train", seed=0)
    batches = first.batches(0)
    for _ in range(3):
        next(batches)
    resumed = Feed(loader, name="train", seed=0)
    resumed.load_state_dict(first.state_dict())
    same = all(
        np.array_equal(a[0].as_array(), b[0].as_array())
        for a, b in zip(batches, resumed.batches(0), strict=True)
    )
    print(f"{len(first)} batches an epoch; the rest after a restart is the same: {same}")


if __name__ == "__main__":
    main()
