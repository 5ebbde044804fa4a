"""DALI's own CPU pipeline, continued in the middle of an epoch. Skipped where DALI is not installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from holdfast.data.dali import dali_loader
from holdfast.data.torch_feed import Feed

SIZE, BATCH = 22, 4


def sample(index: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    image = np.full((6, 6, 1), index, dtype=np.uint8) + np.arange(6, dtype=np.uint8)[None, :, None] * 30
    return image, np.array(rng.integers(2), dtype=np.int32)


def stand_in(source: Any) -> Any:
    """What a pipeline does with its source, without DALI: the adapter is tested everywhere."""

    class Pipeline:
        def build(self) -> None: ...

        def run(self) -> list[np.ndarray]:
            images, flips = source()
            return [np.stack([i[:, ::-1] if f else i for i, f in zip(images, flips, strict=True)])]

    return Pipeline()


def real(source: Any) -> Any:
    dali = pytest.importorskip("nvidia.dali", reason="DALI is not installed")
    fn = dali.fn

    @dali.pipeline_def(batch_size=BATCH, num_threads=1, device_id=None, seed=0)
    def pipeline() -> Any:
        images, flips = fn.external_source(source=source, num_outputs=2)
        return fn.flip(images, horizontal=flips)

    return pipeline()


def feed_of(build: Any, state: dict[str, Any] | None = None, **options: Any) -> Feed:
    loader = dali_loader(build, sample, size=SIZE, batch=BATCH, seed=3, **options)
    feed = Feed(loader, name="train", seed=0)
    if state is not None:
        feed.load_state_dict(state)
    return feed


def run_through(feed: Feed, first: int = 0) -> tuple[list[np.ndarray], list[dict[str, Any]]]:
    batches, states = [], []
    for epoch in range(first, 2):
        for outputs in feed.batches(epoch):
            out = outputs[0]
            batches.append(np.array(out) if isinstance(out, np.ndarray) else out.as_array())
            states.append(feed.state_dict())
    return batches, states


@pytest.mark.parametrize("build", [stand_in, real])
def test_a_pipeline_continues_with_the_same_samples_and_flips(build: Any) -> None:
    whole, states = run_through(feed_of(build))
    assert [len(b) for b in whole] == [4, 4, 4, 4, 4, 2] * 2
    assert sorted(int(image.min()) for b in whole[:6] for image in b) == list(range(SIZE))
    for point in range(len(whole)):
        rest, _ = run_through(feed_of(build, states[point]), states[point]["position"]["epoch"])
        assert len(rest) == len(whole) - point - 1
        assert all(np.array_equal(a, b) for a, b in zip(rest, whole[point + 1 :], strict=True))


def test_ranks_share_the_samples() -> None:
    seen = [
        [int(image.min()) for b in run_through(feed_of(stand_in, rank=rank, world=2))[0][:3] for image in b]
        for rank in range(2)
    ]
    assert sorted(seen[0] + seen[1]) == list(range(SIZE))
