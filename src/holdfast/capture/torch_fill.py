"""Stored blocks into the memory of a tensor: which bytes of which file, and what they become."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from holdfast.capture.torch_leaves import leaf_from_bytes
from holdfast.capture.torch_shards import Region
from holdfast.errors import CorruptCheckpoint


@dataclass(frozen=True)
class Piece:
    """A stored block of a tensor: bytes [start, stop) of a file."""

    file: str
    start: int
    stop: int
    region: Region


@dataclass
class Need:
    """Bytes to be read, and what they become."""

    finish: Callable[[], Any]
    wanted: list[tuple[str, int, memoryview]] = field(default_factory=list)


def whole_of_one(piece: Piece, said: dict[str, Any], code: str) -> Need:
    """A tensor or an array of one rank, whole."""
    raw = torch.empty(piece.stop - piece.start, dtype=torch.uint8)
    shape = said.get("shape", piece.region.shape)
    need = Need(lambda: leaf_from_bytes(said, code, shape, raw))
    if raw.numel():
        need.wanted.append((piece.file, piece.start, _memory(raw)))
    return need


def filling(local: torch.Tensor, region: Region, pieces: Iterable[Piece], where: str) -> Need:
    """Fill `local`, which holds `region` of a tensor, from the stored pieces that meet it."""
    later: list[Callable[[], Any]] = []
    need = Need(lambda: [copy() for copy in later])
    covered = 0
    for piece in pieces:
        both = region.meet(piece.region) if region.shape else piece.region
        if both is None:
            continue
        covered += math.prod(both.shape)
        into = local[both.inside(region)] if region.shape else local
        first, count = _span_within(both, piece.region)
        start = piece.start + first * local.itemsize
        if into.is_contiguous() and count == math.prod(both.shape):
            need.wanted.append((piece.file, start, _memory(into)))
        else:
            # Rows of the stored block with gaps between them: read what encloses them, then pick.
            raw = torch.empty(count, dtype=local.dtype)
            need.wanted.append((piece.file, start, _memory(raw)))
            rows = torch.as_strided(raw, both.shape, _strides(piece.region.shape))
            later.append(lambda into=into, rows=rows: into.copy_(rows))  # type: ignore[misc]
    if covered != math.prod(region.shape):
        raise CorruptCheckpoint(
            f"{where} is not complete: the checkpoint's files hold {covered} of its"
            f" {math.prod(region.shape)} numbers"
        )
    return need


def _span_within(block: Region, outer: Region) -> tuple[int, int]:
    """Where a block begins in the row-major memory of `outer`, and how many numbers lie up to its last."""
    strides = _strides(outer.shape)
    first = sum((a - b) * s for a, b, s in zip(block.offset, outer.offset, strides, strict=True))
    return first, 1 + sum((n - 1) * s for n, s in zip(block.shape, strides, strict=True))


def _strides(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[i + 1 :]) for i in range(len(shape))]


def _memory(tensor: torch.Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else memoryview(b"")
