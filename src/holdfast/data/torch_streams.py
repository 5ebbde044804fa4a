"""The three default generators of a process (Python, NumPy, torch on the CPU): seed, watch and put back.

Training draws from these too, so whoever borrows one must put it back. Watching must cost next to nothing: it
happens for every batch. Accelerator generators are never touched.
"""

from __future__ import annotations

import ctypes
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.random.mtrand import get_bit_generator

from holdfast.errors import InternalError

T = TypeVar("T")

_WORDS = 624  # of a Mersenne Twister; one more for its position


class Stream(Protocol):
    name: str

    def mark(self) -> Any:
        """The state, in a form that is quick to take and to compare."""
        ...

    def moved(self, mark: Any) -> bool:
        """Whether anything was drawn or seeded since `mark`."""
        ...

    def restore(self, mark: Any) -> None: ...

    def seed(self, seed: int) -> None: ...


class PythonStream:
    """`random`. Its own `getstate` builds 625 integers (10 µs); the same bytes can be read where they lie."""

    name = "random"

    def __init__(self) -> None:
        self._instance: random.Random = random.seed.__self__  # type: ignore[attr-defined]
        self._memory = _words_of(self._instance)

    def mark(self) -> Any:
        if self._memory is None:
            return random.getstate()
        return bytes(self._memory), self._instance.gauss_next  # type: ignore[attr-defined]

    def moved(self, mark: Any) -> bool:
        return bool(self.mark() != mark)

    def restore(self, mark: Any) -> None:
        if self._memory is None:
            random.setstate(mark)
            return
        position, *words = struct.unpack(f"={_WORDS + 1}I", mark[0])
        random.setstate((3, (*words, position), mark[1]))

    def seed(self, seed: int) -> None:
        random.seed(seed)


def _words_of(instance: random.Random) -> memoryview | None:
    """A read-only view of the generator's position and words, or None where they do not lie as CPython lays
    them. Checked against `getstate` with a generator of its own, so a wrong guess costs speed and nothing
    else."""
    offset = object.__basicsize__
    size = (_WORDS + 1) * 4
    if random.Random.__basicsize__ < offset + size:
        return None

    def view(of: random.Random) -> memoryview:
        return memoryview((ctypes.c_ubyte * size).from_address(id(of) + offset)).toreadonly()

    for probe_seed in (1, 2):
        probe = random.Random(probe_seed)
        probe.getrandbits(32)
        position, *words = struct.unpack(f"={_WORDS + 1}I", bytes(view(probe)))
        if (*words, position) != probe.getstate()[1]:
            return None
    return view(instance)


class NumpyStream:
    """`numpy.random`'s global generator. `get_state` takes 60 µs; its address is public and takes none."""

    name = "numpy.random"

    def __init__(self) -> None:
        self._generator: Any = None
        self._memory: memoryview | None = None
        self._clean = b""  # a state known to hold no spare normal, which lies outside the words

    def mark(self) -> Any:
        memory = self._words()
        if memory is None:
            return _numpy_state()
        raw = bytes(memory)
        if raw != self._clean:
            state = _numpy_state()
            if state[3]:
                return state
            self._clean = raw
        return raw

    def moved(self, mark: Any) -> bool:
        if isinstance(mark, bytes):
            memory = self._words()
            return memory is None or bytes(memory) != mark
        return bool(_numpy_state() != mark)

    def restore(self, mark: Any) -> None:
        memory = self._words()
        if isinstance(mark, bytes) and memory is not None:
            np.random.seed(0)  # forgets a spare normal, which lies outside the words
            memory[:] = mark
            self._clean = mark
        elif isinstance(mark, bytes):
            raise InternalError("numpy.random was given another bit generator while a sample was loaded")
        else:
            _set_numpy_state(mark)

    def seed(self, seed: int) -> None:
        # The upper half: of the lower one torch would make the same Mersenne Twister and the same numbers.
        np.random.seed(seed >> 32)
        if (memory := self._words()) is not None:
            self._clean = bytes(memory)  # seeding forgets the spare normal, so nobody need ask for it

    def _words(self) -> memoryview | None:
        generator = get_bit_generator()  # the user may have put another in its place
        if generator is not self._generator:
            self._generator, self._memory, self._clean = generator, None, b""
            if type(generator) is np.random.MT19937:
                address = generator.ctypes.state_address
                raw = (ctypes.c_ubyte * ((_WORDS + 1) * 4)).from_address(address)
                self._memory = memoryview(raw).cast("B")
        return self._memory


def _numpy_state() -> tuple[Any, ...]:
    """In a form that compares: (kind, words or the foreign generator's own state, position, spare normal)."""
    state: Any = np.random.get_state(legacy=False)
    spare = (int(state.get("has_gauss", 0)), float(state.get("gauss", 0.0)))
    if state["bit_generator"] != "MT19937":
        return state["bit_generator"], _comparable(get_bit_generator().state), 0, *spare
    return "MT19937", state["state"]["key"].tobytes(), int(state["state"]["pos"]), *spare


def _set_numpy_state(mark: tuple[Any, ...]) -> None:
    kind, inner, position, has_gauss, gauss = mark
    if kind == "MT19937":
        words = np.frombuffer(inner, dtype=np.uint32)
        np.random.set_state(("MT19937", words, position, has_gauss, gauss))
    else:
        get_bit_generator().state = inner


def _comparable(state: Any) -> Any:
    """The same with lists for arrays: bit generators take both, and lists have one answer to ==."""
    if isinstance(state, dict):
        return {key: _comparable(value) for key, value in state.items()}
    return state.tolist() if isinstance(state, np.ndarray) else state


class TorchStream:
    """torch's default CPU generator. Not `torch.manual_seed`, which would seed the accelerators as well."""

    name = "torch"

    def mark(self) -> Any:
        # As bytes, because torch.equal and element-wise comparison cost ten times as much.
        return torch.default_generator.get_state().numpy().tobytes()

    def moved(self, mark: Any) -> bool:
        return bool(self.mark() != mark)

    def restore(self, mark: Any) -> None:
        torch.default_generator.set_state(torch.frombuffer(bytearray(mark), dtype=torch.uint8))

    def seed(self, seed: int) -> None:
        torch.default_generator.manual_seed(seed & 0x7FFFFFFFFFFFFFFF)


TORCH: Stream = TorchStream()
STREAMS: Sequence[Stream] = (PythonStream(), NumpyStream(), TORCH)


class OwnStreams:
    """Generators of one's own, lent to code that knows only the default ones.

    They begin with `seed` and go on from one `run` to the next; training's are put back in between.
    """

    def __init__(self, seed: int, streams: Sequence[Stream] = STREAMS) -> None:
        self._seed = seed
        self._streams = streams
        self._own: list[Any] | None = None

    def run(self, work: Callable[[], T]) -> T:
        trainings = [stream.mark() for stream in self._streams]
        try:
            if self._own is None:
                for stream in self._streams:
                    stream.seed(self._seed)
            else:
                for stream, mark in zip(self._streams, self._own, strict=True):
                    stream.restore(mark)
            result = work()
            self._own = [stream.mark() for stream in self._streams]
            return result
        finally:
            for stream, mark in zip(self._streams, trainings, strict=True):
                stream.restore(mark)
