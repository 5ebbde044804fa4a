"""Arithmetic in GF(256) with the polynomial 0x11d, as ISA-L, jerasure and RAID-6 have it.

Addition is XOR. Every number here ends up in parity on disk: none of it may ever change.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from holdfast.errors import InternalError

POLYNOMIAL = 0x11D
Matrix = tuple[tuple[int, ...], ...]


def _powers_of_two() -> tuple[list[int], list[int]]:
    powers, logarithms, value = [0] * 510, [0] * 256, 1
    for exponent in range(255):
        powers[exponent] = powers[exponent + 255] = value
        logarithms[value] = exponent
        value <<= 1
        if value & 0x100:
            value ^= POLYNOMIAL
    return powers, logarithms


_POWER, _LOG = _powers_of_two()


def multiply(a: int, b: int) -> int:
    return _POWER[_LOG[a] + _LOG[b]] if a and b else 0


def inverse(a: int) -> int:
    if a == 0:
        raise InternalError("zero has no inverse in GF(256)")
    return _POWER[255 - _LOG[a]]


def dot(left: Sequence[int], right: Sequence[int]) -> int:
    total = 0
    for a, b in zip(left, right, strict=True):
        total ^= multiply(a, b)
    return total


def invert(matrix: Sequence[Sequence[int]]) -> Matrix:
    """Gauss-Jordan. A matrix without inverse is a bug: every square part of a Cauchy matrix has one."""
    size = len(matrix)
    rows = [[*row, *(int(i == j) for j in range(size))] for i, row in enumerate(matrix)]
    for column in range(size):
        pivot = next((r for r in range(column, size) if rows[r][column]), None)
        if pivot is None:
            raise InternalError("a coding matrix has no inverse")
        rows[column], rows[pivot] = rows[pivot], rows[column]
        scale = inverse(rows[column][column])
        rows[column] = [multiply(scale, value) for value in rows[column]]
        for other in range(size):
            if other != column and (factor := rows[other][column]):
                rows[other] = [
                    v ^ multiply(factor, p) for v, p in zip(rows[other], rows[column], strict=True)
                ]
    return tuple(tuple(row[size:]) for row in rows)


@cache
def bit_matrix(factor: int) -> tuple[tuple[int, int], ...]:
    """(b, t) for each bit b of the input that goes into bit t of its product with `factor`."""
    return tuple((b, t) for b in range(8) for t in range(8) if multiply(factor, 1 << b) >> t & 1)
