"""From verified image bytes back to states. Tensors are views of the image wherever that is safe."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch

from holdfast.capture.torch_leaves import TORCH_LEAVES, leaf_from_bytes
from holdfast.errors import CorruptCheckpoint, HoldfastError, SaveError
from holdfast.format.image import ALIGNMENT, ImageLayout, header_length, parse_image, require_readable
from holdfast.format.tree import inflate, skeletons


def image_layout(image: memoryview) -> ImageLayout:
    length = header_length(bytes(image[:8]), len(image))
    return parse_image(bytes(image[:length]), len(image))


def require_inflatable(layout: ImageLayout, name: str, values: Mapping[str, list[Any]]) -> None:
    """Before an image of this layout is written for the first time: the readers' own code must take it."""
    require_readable(layout, name)
    try:
        for key, node in skeletons(layout.metadata, name).items():
            inflate(
                node,
                json.loads(json.dumps(values[key])),
                lambda entry: layout.spans.get(entry["name"]),
                TORCH_LEAVES,
            )
    except (HoldfastError, KeyError, TypeError, ValueError) as error:
        raise SaveError(f"{name} would be unreadable: {error!r}") from error


def inflate_image(image: memoryview, values: Mapping[str, list[Any]]) -> dict[str, Any]:
    """The states of every tracked object in this image, by its key."""
    layout = image_layout(image)
    nodes = skeletons(layout.metadata, "the image")
    leaves: dict[str, Any] = {}

    def tensor(entry: dict[str, Any]) -> Any:
        name = entry["name"]
        # One object per name: what was tied when it was saved is tied again.
        if name not in leaves:
            start, stop = layout.spans[name]
            raw = _bytes_of(image, start, stop)
            # A live tensor must be aligned as torch's own allocator aligns it: kernels may choose another
            # path otherwise, and "bit for bit" would depend on where a tensor lay in a file.
            if raw.data_ptr() % ALIGNMENT and raw.numel():
                raw = raw.clone()
            spec = layout.tensors[name]
            leaves[name] = leaf_from_bytes(entry, spec.dtype, spec.shape, raw)
        return leaves[name]

    try:
        return {key: inflate(node, values[key], tensor, TORCH_LEAVES) for key, node in nodes.items()}
    except (KeyError, TypeError, RuntimeError, AttributeError) as error:
        raise CorruptCheckpoint(f"the image does not match its skeleton: {error!r}") from error


def _bytes_of(image: memoryview, start: int, stop: int) -> torch.Tensor:
    # Each its own storage and not a slice of one: slices share a version counter, and a change of any
    # restored tensor would then look like a change of all of them and tear the next snapshot.
    if start == stop:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(image, dtype=torch.uint8, count=stop - start, offset=start)
