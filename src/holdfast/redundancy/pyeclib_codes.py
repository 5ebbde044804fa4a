"""The code "isa-l-cauchy" at the speed of ISA-L, where pyeclib is installed.

pyeclib takes whole fragments, each with a header: so this holds all inputs of a window, and puts the headers
on and takes them off. It is used only after it has given the same bytes as NumPy.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from holdfast.errors import InternalError
from holdfast.redundancy.builder import BlockBuilder, BytesLike, as_bytes
from holdfast.redundancy.cauchy import Bytes
from holdfast.redundancy.codes import Code, Combination

_HEADER = 80
_ALIGN = 64
# n slices of this size stay in the cache; whole windows are coded at half the speed.
_SLICE = 256 << 10


class PyeclibBuilder:
    """Does what BlockBuilder does, for combinations that `can_build` accepts."""

    def __init__(
        self, combination: Combination, size: int, *, lengths: Mapping[int, int] | None = None
    ) -> None:
        self.combination = combination
        self.size = size
        self._awaited = {block: (lengths or {}).get(block, size) for block in combination.inputs}
        self._inputs = np.zeros((len(combination.inputs), -(-size // _ALIGN) * _ALIGN), np.uint8)

    def add(self, block: int, chunk: BytesLike, offset: int = 0) -> None:
        source = as_bytes(chunk)
        if block not in self._awaited:
            raise InternalError(f"block {block} is no input of this combination")
        if offset < 0 or offset + len(source) > self.size or len(source) > self._awaited[block]:
            raise InternalError(f"block {block}: {len(source)} bytes at {offset} are more than it has")
        self._awaited[block] -= len(source)
        self._inputs[self.combination.inputs.index(block), offset : offset + len(source)] = source

    def block(self, output: int) -> Bytes:
        late = [block for block, count in self._awaited.items() if count]
        if late:
            raise InternalError(f"blocks {late} have not come in full; the sum would be wrong")
        code, result = self.combination.code, np.empty(self._inputs.shape[1], np.uint8)
        for start in range(0, len(result), _SLICE):
            stop = min(start + _SLICE, len(result))
            headers = _headers(code.data, code.parity, stop - start)
            fragments = [
                headers[block] + self._inputs[at, start:stop].tobytes()
                for at, block in enumerate(self.combination.inputs)
            ]
            built = _driver(code.data, code.parity).reconstruct(fragments, [output])[0]
            result[start:stop] = as_bytes(built)[_HEADER:]
        return result[: self.size]


def can_build(combination: Combination) -> bool:
    """Whether pyeclib is here, knows this code, and needs no input fewer than there are."""
    code = combination.code
    return (
        code.name == "isa-l-cauchy"
        and len(combination.inputs) == code.data
        and agrees_with_numpy(code.data, code.parity)
    )


@cache
def agrees_with_numpy(data: int, parity: int) -> bool:
    """Whether pyeclib is installed and gives our bytes: another version may have another matrix."""
    try:
        from pyeclib.ec_iface import ECDriverError
    except ImportError:
        return False
    encoding = Code("isa-l-cauchy", data, parity).encoding()
    sample = (np.arange(data * _ALIGN) * 37 % 251).astype(np.uint8).reshape(data, _ALIGN)
    theirs, ours = PyeclibBuilder(encoding, _ALIGN), BlockBuilder(encoding, _ALIGN)
    for block in range(data):
        theirs.add(block, sample[block])
        ours.add(block, sample[block])
    try:
        return all(np.array_equal(theirs.block(b), ours.block(b)) for b in encoding.outputs)
    except (ECDriverError, ValueError):
        return False


@cache
def _driver(data: int, parity: int) -> Any:
    from pyeclib.ec_iface import ECDriver

    return ECDriver(k=data, m=parity, ec_type="isa_l_rs_cauchy")


@cache
def _headers(data: int, parity: int, size: int) -> tuple[bytes, ...]:
    """The header of each fragment of `size` bytes. Nothing in it depends on the data."""
    fragments = _driver(data, parity).encode(bytes(data * size))
    return tuple(fragment[:_HEADER] for fragment in fragments)
