"""ISA-L's Cauchy code in NumPy: byte i of the parity depends on byte i of each block and on nothing else.

Slower than the bit-matrix code, and here so that parity which pyeclib wrote never needs pyeclib to be read.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from holdfast.redundancy.cauchy import Bytes
from holdfast.redundancy.galois import Matrix, inverse, product_table

# The products of one slice stay in the L2 cache until they are XORed.
_SLICE = 128 << 10


@cache
def isa_l_rows(data: int, parity: int) -> Matrix:
    """gf_gen_cauchy1_matrix of ISA-L: 1/((n+i) xor j), unscaled."""
    return tuple(tuple(inverse((data + i) ^ j) for j in range(data)) for i in range(parity))


def add_product(target: Bytes, source: Bytes, factor: int, start: int) -> None:
    """target[start:] ^= factor * source, byte by byte."""
    if factor == 1:
        part = target[start : start + len(source)]
        np.bitwise_xor(part, source, out=part)
        return
    table = product_table(factor)
    for offset in range(0, len(source), _SLICE):
        # translate beats numpy.take, which turns every byte into an index of eight.
        products = np.frombuffer(source[offset : offset + _SLICE].tobytes().translate(table), np.uint8)
        part = target[start + offset : start + offset + len(products)]
        np.bitwise_xor(part, products, out=part)
