"""How fast parity is made and lost blocks come back, against XOR and memcpy of NumPy. One core."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import numpy as np

from holdfast.redundancy.codes import Code, CodeName, Combination
from holdfast.redundancy.plan import BlockBuilder
from options import parse_options
from scoreboard import Scoreboard

WINDOW = 4 << 20
SHAPES: list[tuple[CodeName, int, int]] = [
    ("xor", 7, 1),
    ("cauchy-bits", 6, 2),
    ("cauchy-bits", 5, 3),
    ("cauchy-bits", 14, 2),
]
Blocks = list[np.ndarray[tuple[int, ...], np.dtype[np.uint8]]]


def timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def combine(combination: Combination, blocks: Blocks) -> list[bytes | memoryview]:
    """One window, from the first input to the last output, as a step of a plan does it."""
    builder = BlockBuilder(combination, WINDOW)
    for block in combination.inputs:
        builder.add(block, blocks[block])
    return [builder.block(block).data for block in combination.outputs]


def contenders(blocks: Blocks) -> Iterable[tuple[str, str, int, Callable[[], object]]]:
    """(who, what, bytes of data it handles, work)."""
    target = np.ones_like(blocks[0])
    yield "numpy", "memcpy", WINDOW, lambda: np.copyto(target, blocks[0])
    yield "numpy", "XOR in place", WINDOW, lambda: np.bitwise_xor(target, blocks[1], out=target)
    for name, data, parity in SHAPES:
        code = Code(name, data, parity)
        lost = range(parity)
        works = {
            f"encode {data}+{parity}": code.encoding(),
            f"encode {data}+{parity}, last row only": code.encoding([parity - 1]),
            f"rebuild {parity} of {data}+{parity}": code.combination(range(parity, data + parity), lost),
        }
        for what, combination in works.items():
            # The values do not matter to the speed, so any blocks may stand for those that are left.
            yield f"{name}, NumPy", what, data * WINDOW, lambda c=combination: combine(c, blocks)


def main() -> None:
    options = parse_options(__doc__)
    random = np.random.default_rng(0)
    blocks = [random.integers(0, 256, WINDOW, np.uint8) for _ in range(17)]
    samples: dict[tuple[str, str], list[float]] = {}
    for _ in range(options.repeats + 1):
        for who, what, size, work in contenders(blocks):
            samples.setdefault((who, what), []).append(size / timed(work))
    board = Scoreboard(
        "erasure_codes", f"Erasure codes, windows of {WINDOW >> 20} MiB, bytes of data", options
    )
    for (who, what), speeds in samples.items():
        board.add(who, what, "B/s", speeds[1:])  # the first pays for tables and fresh memory
    board.at_least("cauchy-bits 6+2 encodes", board.median("cauchy-bits, NumPy", "encode 6+2"), 1e9, "B/s")
    xor = board.median("numpy", "XOR in place")
    board.at_least(
        "plain XOR parity, against NumPy's XOR", board.median("xor, NumPy", "encode 7+1") / xor, 0.5
    )
    board.finish()


if __name__ == "__main__":
    main()
