"""A state through the real path: planned, copied into a slot, its bytes read back and inflated."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from holdfast.capture.torch_inflate import inflate_image
from holdfast.capture.torch_object import TrackedObject
from holdfast.capture.torch_plan import StatePlan, encode_values, plan_state, take_parts
from holdfast.capture.torch_registry import Tracked
from holdfast.checkpoints.read import allocate_pages
from holdfast.clock import SystemClock
from holdfast.staging.slots import Slot, SlotPool, anonymous_memory
from holdfast.staging.torch_device import Devices
from holdfast.staging.torch_stager import CopyPlan, Snapshot
from holdfast.staging.torch_stream import StreamedImage


class Holder:
    """An object with a state."""

    def __init__(self, state: Any = None) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


def images_of(
    tracked: Sequence[Tracked], plan: StatePlan | None = None, *, streamed: bool = False
) -> tuple[dict[str, bytes], dict[str, list[Any]]]:
    """The bytes of every image, and the values that a manifest would hold."""
    parts = take_parts(tracked)
    plan = plan or plan_state(parts, set())
    selected = plan.select(parts)
    assert selected is not None
    tensors = selected.tensors
    values = json.loads(json.dumps(encode_values(parts), allow_nan=False))
    if streamed:
        return {image.file: _stream(plan, i, tensors) for i, image in enumerate(plan.images)}, values
    files, layouts = [i.file for i in plan.images], [i.layout for i in plan.images]
    lease = SlotPool(lambda: Slot(files, layouts, anonymous_memory), 1).lease()
    assert lease is not None
    snapshot = Snapshot(lease, CopyPlan.of(plan.placements, tensors, Devices()), tensors, SystemClock(), 10.0)
    snapshot.begin()
    snapshot.finish()
    if snapshot.error:
        raise snapshot.error
    return {image.name: bytes(image.view(0, image.size)) for image in snapshot.images}, values


def _stream(plan: StatePlan, index: int, tensors: Sequence[torch.Tensor], chunk: int = 4096) -> bytes:
    members = [i for i, place in enumerate(plan.placements) if place.image == index]
    layout = plan.images[index].layout
    image = StreamedImage("x", layout, [plan.placements[i] for i in members], [tensors[i] for i in members])
    pieces = (
        image.view(at, min(at + chunk, layout.padded_size)) for at in range(0, layout.padded_size, chunk)
    )
    return b"".join(map(bytes, pieces))[: layout.size]


def states_of(images: dict[str, bytes], values: dict[str, list[Any]]) -> dict[str, Any]:
    states: dict[str, Any] = {}
    for data in images.values():
        # Page-aligned, as a restore reads it: then tensors are views and not copies.
        memory = allocate_pages(len(data))
        memory[:] = data
        states |= inflate_image(memory, values)
    return states


def round_trip(state: Any, *, streamed: bool = False) -> Any:
    return states_of(*images_of([TrackedObject("it", Holder(state))], streamed=streamed))["it"]


def same_bits(a: Any, b: Any) -> bool:
    """Equal in type, shape, layout and every bit, NaN and -0.0 included."""
    if isinstance(a, torch.Tensor):
        if not isinstance(b, torch.Tensor) or a.dtype != b.dtype or a.shape != b.shape:
            return False
        return raw(a) == raw(b)
    if isinstance(a, np.ndarray):
        return (
            type(b) is np.ndarray and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        )
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same_bits(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same_bits, a, b))
    if isinstance(a, float):
        return np.float64(a).tobytes() == np.float64(b).tobytes()
    return bool(a == b)


def raw(tensor: torch.Tensor) -> bytes:
    """The bytes in logical order."""
    plain = tensor.detach().resolve_conj().resolve_neg().cpu()
    plain = (plain.view(torch.uint8) if plain.itemsize == 1 else plain).contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes()
