"""Blocks from blocks, chunk by chunk: parity from data, or lost blocks from those that are left.

One chunk of input and the outputs are in memory, never all the blocks.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from holdfast.errors import InternalError
from holdfast.redundancy.cauchy import CELL_BYTES, CELL_GRANULE, Bytes, add_product
from holdfast.redundancy.codes import Combination

BytesLike = bytes | bytearray | memoryview | npt.NDArray[np.uint8]


def as_bytes(data: BytesLike) -> Bytes:
    """Any contiguous buffer as an array of bytes, uncopied."""
    return np.frombuffer(data, np.uint8)


class BlockBuilder:
    """Builds `combination.outputs` from `combination.inputs`, each `size` bytes long.

    Chunks of the inputs may come in any order and of any length, each byte once. `lengths` gives the length
    of inputs that end early, where padding begins. `block` refuses to answer before every byte has come.
    """

    def __init__(
        self,
        combination: Combination,
        size: int,
        *,
        lengths: Mapping[int, int] | None = None,
        cell_bytes: int = CELL_BYTES,
    ) -> None:
        if combination.code.name == "cauchy-bits" and (size % CELL_GRANULE or cell_bytes % CELL_GRANULE):
            raise InternalError(
                f"bit matrices need multiples of {CELL_GRANULE} bytes, not {size} in cells of {cell_bytes}"
            )
        self.combination = combination
        self.size = size
        self._cell_bytes = cell_bytes
        self._awaited = {block: (lengths or {}).get(block, size) for block in combination.inputs}
        self._outputs = [np.zeros(size, np.uint8) for _ in combination.outputs]

    def add(self, block: int, chunk: BytesLike, offset: int = 0) -> None:
        """`chunk` is what stands at `offset` of the input `block`."""
        source = as_bytes(chunk)
        if block not in self._awaited:
            raise InternalError(f"block {block} is no input of this combination")
        if offset < 0 or offset + len(source) > self.size or len(source) > self._awaited[block]:
            raise InternalError(f"block {block}: {len(source)} bytes at {offset} are more than it has")
        self._awaited[block] -= len(source)
        column = self.combination.inputs.index(block)
        for target, row in zip(self._outputs, self.combination.coefficients, strict=True):
            # Plain XOR knows the factors 0 and 1 only.
            if row[column]:
                add_product(target, source, row[column], offset, self._cell_bytes)

    def block(self, output: int) -> Bytes:
        """The finished block with number `output`."""
        late = [block for block, count in self._awaited.items() if count]
        if late:
            raise InternalError(f"blocks {late} have not come in full; the sum would be wrong")
        return self._outputs[self.combination.outputs.index(output)]
