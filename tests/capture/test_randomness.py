"""Every random stream goes on where it was, and looking at one draws nothing."""

import random

import numpy as np
import pytest
import torch
from round_trip import images_of, states_of

from holdfast.capture.torch_rng import TrackedRandomness
from holdfast.errors import IncompatibleState


def draw() -> tuple[object, ...]:
    return (
        random.random(), random.gauss(0, 1), np.random.rand(), np.random.normal(), float(torch.rand(())),
        float(torch.randn(())), np.random.randint(100), random.sample(range(50), 3),
    )  # fmt: skip


@pytest.mark.parametrize("lead", range(3))
def test_every_stream_continues_where_it_was(lead: int) -> None:
    random.seed(lead)
    np.random.seed(lead)
    torch.manual_seed(lead)
    # An odd number of normals leaves a spare one in Python's and NumPy's generators.
    for _ in range(lead):
        random.gauss(0, 1)
        np.random.normal()
        draw()
    images, values = images_of([TrackedRandomness()])
    first = [draw() for _ in range(3)]
    TrackedRandomness().apply(states_of(images, values)["rng"])
    assert [draw() for _ in range(3)] == first


def test_taking_the_state_draws_nothing() -> None:
    def state() -> tuple[object, ...]:
        numpy_state = np.random.get_state()
        return (
            random.getstate(),
            numpy_state[1].tobytes(),
            numpy_state[2:],
            bytes(torch.get_rng_state().numpy()),
        )

    before = state()
    for _ in range(3):
        images_of([TrackedRandomness()])
    assert state() == before


def test_random_states_of_missing_accelerators_are_refused() -> None:
    state = {**TrackedRandomness().take(), "accelerator": [b"x"] * 99}
    with pytest.raises(IncompatibleState, match="99 accelerators"):
        TrackedRandomness().check(state)
