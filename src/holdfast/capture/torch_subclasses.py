"""Tensors that are made of other tensors and say how: 8-bit optimizer states, quantized weights, jagged ones.

Their parts are stored as the tensors they are. The class that puts them together again is looked up among
those that the program has imported.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch

from holdfast.errors import IncompatibleState, SetupError
from holdfast.format.loaded_names import class_named, name_of_class


def has_parts(kind: type) -> bool:
    """Whether tensors of this class are stored part by part. A DTensor is not: its rank's share is."""
    module = sys.modules.get("torch.distributed.tensor")
    if module is not None and issubclass(kind, module.DTensor):
        return False
    return hasattr(kind, "__tensor_flatten__") and hasattr(kind, "__tensor_unflatten__")


def take_apart(tensor: Any, where: str) -> tuple[list[Any], dict[str, Any]]:
    """What does not change with its values, and its parts by name with the context it asks for."""
    try:
        names, context = tensor.__tensor_flatten__()
        parts = {name: getattr(tensor, name) for name in names}
        stride = list(tensor.stride())
    except (RuntimeError, AttributeError, NotImplementedError, TypeError, ValueError) as error:
        raise SetupError(
            f"cannot save {where}: a {type(tensor).__name__} that cannot be taken apart: {error}"
        ) from error
    size = [int(n) for n in tensor.size()]
    return [name_of_class(type(tensor), where), size, stride], {"context": context, "parts": parts}


def put_together(said: Any, content: Mapping[str, Any]) -> Any:
    parts = content["parts"]
    if not all(isinstance(part, torch.Tensor) for part in parts.values()):
        return parts  # Somebody asks where the parts lie, not for what they make.
    name, size, stride = said
    kind = class_named(name, torch.Tensor, "a tensor")
    try:
        return kind.__tensor_unflatten__(parts, content["context"], torch.Size(size), tuple(stride))
    except Exception as error:
        raise IncompatibleState(f"{name} cannot be built from its parts: {error!r}") from error
