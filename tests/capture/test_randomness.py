"""Every random stream goes on where it was, and looking at one draws nothing."""

import random

import numpy as np
import pytest
import torch
from round_trip import images_of, states_of

from holdfast.capture import torch_rng
from holdfast.capture.torch_rng import TrackedRandomness


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


class TwoDevices:
    """As torch shows accelerators: two of them, each with a stream of its own."""

    def __init__(self) -> None:
        self.streams = {index: torch.full((4,), index, dtype=torch.uint8) for index in range(2)}

    def get_rng_state(self, index: int) -> torch.Tensor:
        return self.streams[index]

    def set_rng_state(self, state: torch.Tensor, index: int) -> None:
        self.streams[index] = state


@pytest.mark.parametrize("saved", [1, 2, 5])
def test_another_number_of_devices_is_no_reason_to_refuse(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, saved: int
) -> None:
    devices = TwoDevices()
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch_rng, "_device_module", lambda: devices)
    state = {**TrackedRandomness().take(), "accelerator": [bytes([40 + i] * 4) for i in range(saved)]}
    TrackedRandomness().check(state)
    TrackedRandomness().apply(state)
    assert [int(devices.streams[i][0]) for i in range(2)] == [40, 1 if saved == 1 else 41]
    assert ("random streams" in caplog.text) is (saved != 2)


def test_streams_of_devices_that_are_gone_are_said(caplog: pytest.LogCaptureFixture) -> None:
    state = {**TrackedRandomness().take(), "accelerator": [b"x"] * 99}
    TrackedRandomness().check(state)
    TrackedRandomness().apply(state)
    assert "99 accelerators" in caplog.text
