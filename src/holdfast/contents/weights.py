"""A model's weights out of a stored state, whole, and as the bytes of a safetensors file. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.checkpoints.find import Found
from holdfast.checkpoints.read import require_manifest
from holdfast.contents.dcp import dcp_items, is_dcp
from holdfast.contents.state import StoredState
from holdfast.contents.tensors import StoredTensor, read_tensors
from holdfast.errors import SetupError
from holdfast.format.image import TensorSpec, plan_image
from holdfast.format.manifest import Manifest
from holdfast.format.tree import Leaves
from holdfast.stores.base import Store


@dataclass(frozen=True)
class Weights:
    """`tied` are names of tensors that share another one's bytes, with the name of that one."""

    tensors: dict[str, StoredTensor]
    tied: tuple[tuple[str, str], ...] = ()


def choose_model(state: StoredState, found: Found, model: str | None) -> str:
    """The key of the model called so; without a name, of the only one or the one called "model"."""
    name = model or (next(iter(state.models)) if len(state.models) == 1 else "model")
    if name not in state.models:
        raise _no_model(found, name, list(state.models))
    return name


def weights_of(state: StoredState, key: str) -> Weights:
    """What all ranks hold together, and rank 0's own of what each of them has for itself."""
    first: dict[object, tuple[str, str]] = {}
    tensors: dict[str, StoredTensor] = {}
    tied = []
    for path, leaf in state.common.items():
        tensor = leaf.value
        if path[0] != key or not isinstance(tensor, StoredTensor):
            continue
        if tensor.pieces and tensor.pieces in first:
            tied.append((leaf.label, first[tensor.pieces][1]))
            continue
        first[tensor.pieces] = (tensor.name, leaf.label)
        tensors[tensor.name] = tensor
    return Weights(tensors, tuple(tied))


def weights_in_dcp(manifest: Manifest, found: Found, model: str | None) -> Weights:
    """DCP knows no models: one is whatever lies below a key of the state, "model" or "app.model".

    A state without such keys is a model's own state_dict.
    """
    every = [
        (path, value) for path, value in dcp_items(manifest, _NO_TORCH) if isinstance(value, StoredTensor)
    ]
    if model is None and all(len(path) == 1 for path, _ in every):
        return Weights({str(path[0]): tensor for path, tensor in every})
    above = list(dict.fromkeys(str(path[0]) for path, _ in every if len(path) > 1))
    name = model or (above[0] if len(above) == 1 else "model")
    tensors = {}
    for path, tensor in every:
        for depth in range(1, len(path)):
            if ".".join(map(str, path[:depth])) == name:
                tensors[".".join(map(str, path[depth:]))] = tensor
                break
    if not tensors:
        raise _no_model(found, name, above)
    return Weights(tensors)


# Values of torch's types are of no interest here, but must be readable.
_NO_TORCH = Leaves(decoders=dict.fromkeys(("torch.Size", "torch.dtype", "torch.device"), str))


def _no_model(found: Found, name: str, known: Sequence[str]) -> SetupError:
    return SetupError(
        f"{found.name} holds no model {name[:60]!r}",
        hint=f"it holds {', '.join(known) or 'none'}; use --model",
    )


def safetensors_file(store: Store, found: Found, weights: Weights) -> list[memoryview]:
    """The parts of the file, in order: its header, and every tensor whole."""
    specs = [_spec(name, tensor) for name, tensor in weights.tensors.items()]
    layout = plan_image(specs, {"format": "pt"})
    contents = read_tensors(store, found, weights.tensors.values())
    order = sorted(weights.tensors, key=lambda name: layout.spans[name])
    return [memoryview(layout.header), *(contents[weights.tensors[name]] for name in order)]


def _spec(name: str, tensor: StoredTensor) -> TensorSpec:
    # Types that the format does not know, and NumPy's, are bytes in it.
    spec = TensorSpec(name, tensor.code, tensor.shape)
    if tensor.is_array or spec.nbytes != tensor.nbytes:
        return TensorSpec(name, "U8", (tensor.nbytes,))
    return spec


def is_plain(found: Found) -> bool:
    """Whether one process saved it by itself: then each model has a file that is such a file already."""
    manifest = require_manifest(found)
    return manifest.world == 1 and not is_dcp(manifest)
