"""pyeclib and NumPy write the same bytes and read each other's; nothing ever needs pyeclib."""

import sys
from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pytest

from holdfast.redundancy import pyeclib_codes
from holdfast.redundancy.builder import BlockBuilder
from holdfast.redundancy.codes import Code, Combination
from holdfast.redundancy.pyeclib_codes import PyeclibBuilder, agrees_with_numpy, can_build

pytest.importorskip("pyeclib")


@pytest.fixture
def fresh_caches() -> Iterator[None]:
    agrees_with_numpy.cache_clear()
    yield
    agrees_with_numpy.cache_clear()


def build(
    builder: BlockBuilder | PyeclibBuilder, combination: Combination, blocks: dict[int, bytes]
) -> dict[int, bytes]:
    for block in combination.inputs:
        builder.add(block, blocks[block])
    return {block: builder.block(block).tobytes() for block in combination.outputs}


@pytest.mark.parametrize(("data", "parity", "size"), [(1, 1, 64), (4, 2, 100), (3, 3, 1), (6, 2, 600_000)])
def test_both_write_the_same_parity(data: int, parity: int, size: int) -> None:
    encoding = Code("isa-l-cauchy", data, parity).encoding()
    assert can_build(encoding)
    values = np.random.default_rng(2).integers(0, 256, (data, size), np.uint8)
    blocks = {block: values[block].tobytes() for block in range(data)}
    theirs = build(PyeclibBuilder(encoding, size), encoding, blocks)
    assert theirs == build(BlockBuilder(encoding, size), encoding, blocks)


def test_each_decodes_what_the_other_wrote() -> None:
    code, size = Code("isa-l-cauchy", 4, 2), 70
    values = np.random.default_rng(3).integers(0, 256, (4, size), np.uint8)
    stripe = {block: values[block].tobytes() for block in range(4)}
    stripe |= build(PyeclibBuilder(code.encoding(), size), code.encoding(), stripe)
    for lost in [*combinations(range(6), 1), *combinations(range(6), 2)]:
        how = code.combination(set(stripe) - set(lost), lost)
        expected = {block: stripe[block] for block in lost}
        assert build(BlockBuilder(how, size), how, stripe) == expected
        if can_build(how):
            assert build(PyeclibBuilder(how, size), how, stripe) == expected


@pytest.mark.usefixtures("fresh_caches")
def test_without_pyeclib_numpy_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyeclib.ec_iface", None)
    assert not can_build(Code("isa-l-cauchy", 4, 2).encoding())


@pytest.mark.usefixtures("fresh_caches")
def test_a_pyeclib_that_disagrees_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other:
        def encode(self, data: bytes) -> list[bytes]:
            return [bytes(80 + len(data) // 4)] * 6

        def reconstruct(self, fragments: list[bytes], wanted: list[int]) -> list[bytes]:
            return [fragments[0] for _ in wanted]

    monkeypatch.setattr(pyeclib_codes, "_driver", lambda data, parity: Other())
    monkeypatch.setattr(pyeclib_codes, "_headers", lambda data, parity, size: (bytes(80),) * (data + parity))
    assert not can_build(Code("isa-l-cauchy", 4, 2).encoding())


def test_pyeclib_is_not_asked_for_codes_it_does_not_have() -> None:
    assert not can_build(Code("cauchy-bits", 4, 2).encoding())
    assert not can_build(Code("xor", 4, 1).encoding())
