"""Tensors of which every rank holds a part (DTensor: FSDP2, tensor parallelism).

A stored shard is the rank's own rows as they lie in its memory, with the place they have in the whole.
"""

from __future__ import annotations

import sys
import zlib
from typing import TYPE_CHECKING, Any, TypeGuard

import torch

from holdfast.contents.regions import Region
from holdfast.errors import SetupError

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_sharded(tensor: Any) -> TypeGuard[DTensor]:
    # Importing DTensor takes a second; where nobody has done it, nobody has one.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's own part, sharing its memory; the tensor itself where it is whole."""
    return tensor._local_tensor if is_sharded(tensor) else tensor


def region_of(tensor: DTensor, where: str) -> Region:
    """Which block of the whole this rank holds."""
    try:
        chunks = tensor.__create_chunk_list__()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise SetupError(
            f"cannot save {where}: {error}",
            hint="a tensor that is still to be summed over ranks has no value",
        ) from error
    if len(chunks) != 1:
        raise SetupError(f"cannot save {where}: this rank holds {len(chunks)} separate blocks of it")
    return Region(tuple(chunks[0].offsets), tuple(chunks[0].sizes))


def writes_it(tensor: DTensor, name: str) -> bool:
    """Whether this rank is the one to write, where several hold the same block.

    Which copy is written depends on the name, so that the bytes are spread over all of them.
    """
    coordinate = tensor.device_mesh.get_coordinate()
    if coordinate is None:
        return False
    chosen = zlib.crc32(name.encode())
    return all(
        at == chosen % tensor.device_mesh.size(dim)
        for dim, (at, placement) in enumerate(zip(coordinate, tensor.placements, strict=True))
        if placement.is_replicate()
    )


def like(local: torch.Tensor, live: DTensor) -> DTensor:
    """A DTensor with this local part, spread as `live` is."""
    return type(live).from_local(
        local,
        live.device_mesh,
        live.placements,
        run_check=False,
        shape=live.shape,
        stride=live.stride(),
    )
