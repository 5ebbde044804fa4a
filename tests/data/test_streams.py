"""The three default generators: noticed when drawn from, put back to the bit."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from holdfast.data import torch_streams
from holdfast.data.torch_streams import STREAMS, NumpyStream, PythonStream, Stream

DRAWS = {
    "random": [random.random, lambda: random.gauss(0, 1), lambda: random.shuffle([1, 2, 3])],
    "numpy.random": [np.random.rand, np.random.randn, lambda: np.random.permutation(3)],
    "torch": [lambda: torch.rand(1), lambda: torch.randn(1), lambda: torch.randperm(5)],
}
CASES = [(stream, draw) for stream in STREAMS for draw in DRAWS[stream.name]]


def everything_drawn() -> list[float]:
    return [
        random.random(), random.gauss(0, 1), random.gauss(0, 1), *np.random.randn(3).tolist(),
        np.random.rand(),
        *torch.randn(20).tolist(), float(torch.rand(())),
    ]  # fmt: skip


@pytest.mark.parametrize(("stream", "draw"), CASES)
def test_one_draw_is_noticed_and_undone(stream: Stream, draw) -> None:
    for before in range(
        1250
    ):  # past two refills of a Mersenne Twister, through every state of the spare normal
        mark = stream.mark()
        assert not stream.moved(mark)
        draw()
        assert stream.moved(mark), f"draw {before} went unnoticed"


@pytest.mark.parametrize("stream", STREAMS, ids=lambda s: s.name)
def test_restoring_gives_the_same_numbers_again(stream: Stream) -> None:
    for spare in (False, True):
        stream.seed(12345 << 20)
        if spare:  # an odd number of normals leaves one in reserve, outside the generator's words
            random.gauss(0, 1), np.random.randn(), torch.randn(1)
        marks = [s.mark() for s in STREAMS]
        first = everything_drawn()
        for s, mark in zip(STREAMS, marks, strict=True):
            s.restore(mark)
        assert everything_drawn() == first


@pytest.mark.parametrize("stream", STREAMS, ids=lambda s: s.name)
def test_a_seed_decides_all_that_follows(stream: Stream) -> None:
    drawn = []
    for noise in (1, 2):
        everything_drawn() * noise
        for s in STREAMS:
            s.seed(0xDEADBEEFCAFE)
        drawn.append(everything_drawn())
    assert drawn[0] == drawn[1]


def test_numpy_and_torch_do_not_echo_each_other() -> None:
    for s in STREAMS:
        s.seed(0x0123456789ABCDEF)
    numbers = np.random.randint(0, 2**32, size=4, dtype=np.uint32)
    torchs = torch.randint(0, 2**32, (4,), dtype=torch.int64).numpy()
    assert not set(numbers.tolist()) & set(torchs.tolist())


def test_seeding_torch_leaves_accelerators_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("an accelerator was seeded")

    monkeypatch.setattr(torch, "manual_seed", refuse)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", refuse)
    torch_streams.TORCH.seed(5)


def test_a_foreign_numpy_generator_is_watched_and_restored() -> None:
    stream = NumpyStream()
    usual = np.random.get_bit_generator()
    try:
        for kind in (np.random.PCG64, np.random.Philox, np.random.SFC64):
            np.random.set_bit_generator(kind(7))
            mark = stream.mark()
            assert not stream.moved(mark)
            first = np.random.rand(3).tolist()
            assert stream.moved(mark)
            stream.restore(mark)
            assert np.random.rand(3).tolist() == first
    finally:
        np.random.set_bit_generator(usual)


def test_python_works_where_its_memory_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_streams, "_words_of", lambda instance: None)
    stream = PythonStream()
    mark = stream.mark()
    assert not stream.moved(mark)
    first = random.gauss(0, 1)
    assert stream.moved(mark)
    stream.restore(mark)
    assert random.gauss(0, 1) == first
