"""Cauchy Reed-Solomon on bit matrices: GF(256) arithmetic done by plain XOR of whole strips of bytes.

A block is cut into cells (the last one shorter) and a cell into eight equal strips. Strip b holds bit b of
the symbols, so multiplying by a constant means XORing strips into strips, at the speed of memory.
Bloemer et al. 1995; Plank and Xu 2006. Row 0 is all ones: with one parity block this is plain XOR.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from holdfast.redundancy.galois import Matrix, bit_matrix, inverse, multiply

Bytes = npt.NDArray[np.uint8]
# Eight strips of 32 KiB: one cell of input and one of output fill the usual L2 cache, and a call of NumPy
# (0.4 µs) is small against the strip it XORs (1 µs).
CELL_BYTES = 256 << 10
# Eight strips of whole machine words.
CELL_GRANULE = 64


@cache
def cauchy_rows(data: int, parity: int) -> Matrix:
    """The coefficients C[i][j] = 1/((n+i) xor j), columns scaled so that row 0 is all ones, rows scaled so
    that their bit matrices have the fewest ones. Scaling leaves every square part invertible."""
    plain = [[inverse((data + i) ^ j) for j in range(data)] for i in range(parity)]
    scaled = [[multiply(c, inverse(first)) for c, first in zip(row, plain[0], strict=True)] for row in plain]
    rows = []
    for row in scaled:
        cheapest = min(range(1, 256), key=lambda s: (sum(_cost(multiply(s, c)) for c in row), s))
        rows.append(tuple(multiply(cheapest, c) for c in row))
    return tuple(rows)


@cache
def _cost(factor: int) -> int:
    return len(bit_matrix(factor))


def add_product(target: Bytes, source: Bytes, factor: int, start: int, cell_bytes: int) -> None:
    """target ^= factor * source, where `source` belongs at `start` of the block `target` and the rest of the
    block is zero there. Whole cells are fast; ragged ends go through a cell of their own."""
    if factor == 1:
        part = target[start : start + len(source)]
        np.bitwise_xor(part, source, out=part)
        return
    stop = start + len(source)
    position = start
    while position < stop:
        cell_start = position - position % cell_bytes
        cell_stop = min(cell_start + cell_bytes, len(target))
        end = min(cell_stop, stop)
        piece = source[position - start : end - start]
        if len(piece) < cell_stop - cell_start:
            whole = np.zeros(cell_stop - cell_start, np.uint8)
            whole[position - cell_start : end - cell_start] = piece
            piece = whole
        _add_cell(target[cell_start:cell_stop], piece, factor)
        position = end


def _add_cell(target: Bytes, source: Bytes, factor: int) -> None:
    strip = len(source) // 8
    of = [source[i * strip : (i + 1) * strip] for i in range(8)]
    to = [target[i * strip : (i + 1) * strip] for i in range(8)]
    for b, t in bit_matrix(factor):
        np.bitwise_xor(to[t], of[b], out=to[t])
