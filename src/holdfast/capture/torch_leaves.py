"""Which torch and NumPy values are leaves of a state, and how their bytes appear in an image."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import PosixPath, PurePath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any

import numpy as np
import torch

from holdfast.capture.torch_place import SAVED_FROM
from holdfast.capture.torch_shards import is_sharded, local_of, region_of
from holdfast.errors import CorruptCheckpoint, IncompatibleState, SetupError
from holdfast.format.array_types import array_type_from, describe_array_type
from holdfast.format.loaded_names import class_named, name_of_class
from holdfast.format.scalars import ENCODERS, decode_enum, decode_scalar
from holdfast.format.tree import SCALAR, TENSOR, WRAPPED, Leaves

# ---- Tensors that are made of other tensors and say how: 8-bit optimizer states, quantized weights,
# jagged ones.


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


# ---- Paths as values of a state: words, and nothing that is looked at on a disk.

PATHS: dict[str, type[PurePath]] = {
    kind.__name__: kind for kind in (PosixPath, PurePosixPath, WindowsPath, PureWindowsPath)
}


def encode_path(value: PurePath) -> Any:
    return ["path", [type(value).__name__, ENCODERS[str](str(value))]]


def decode_path(payload: Any) -> PurePath:
    name, text = payload
    return PATHS[name](decode_scalar(text, {}))


# torch type -> safetensors code. A type that is missing here is stored as raw bytes with its name beside.
CODES: dict[torch.dtype, str] = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.int32: "I32",
    torch.int64: "I64", torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64", torch.float16: "F16",
    torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64", torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
if hasattr(torch, "float8_e8m0fnu"):
    CODES[torch.float8_e8m0fnu] = "F8_E8M0"


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def dtype_from_name(name: Any) -> torch.dtype:
    found = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(found, torch.dtype):
        raise CorruptCheckpoint(
            f"unknown torch type {str(name)[:40]!r}", hint="was it saved by a newer torch?"
        )
    return found


def dtype_of_code(code: str) -> torch.dtype:
    return _BY_CODE[code]


def _device_from_text(text: Any) -> torch.device:
    try:
        return torch.device(text)
    except RuntimeError as error:
        raise ValueError(str(error)) from error


def _recognise(kind: type) -> int | None:
    if issubclass(kind, torch.Tensor) and has_parts(kind):
        return WRAPPED
    if issubclass(kind, torch.Tensor) or kind is np.ndarray:
        return TENSOR
    return SCALAR if issubclass(kind, torch.device) else None


TORCH_LEAVES = Leaves(
    tensors={torch.Tensor, torch.nn.Parameter, np.ndarray},
    scalars={
        **dict.fromkeys(PATHS.values(), encode_path),
        torch.Size: lambda v: ["torch.Size", list(v)],
        torch.dtype: lambda v: ["torch.dtype", dtype_name(v)],
        torch.device: lambda v: ["torch.device", str(v)],
    },
    decoders={
        "torch.Size": torch.Size,
        "torch.dtype": dtype_from_name,
        "torch.device": _device_from_text,
        "enum": decode_enum,
        "path": decode_path,
    },
    recognise=_recognise,
    take_apart=take_apart,
    put_together=put_together,
)


def as_tensor(leaf: torch.Tensor | np.ndarray[Any, Any], where: str) -> torch.Tensor:
    """The leaf, or this rank's part of it, as a plain strided tensor that shares its memory, or a SetupError
    that names it."""
    if isinstance(leaf, np.ndarray):
        return _array_as_tensor(leaf, where)
    leaf = local_of(leaf)
    problem = _why_not_storable(leaf)
    if problem:
        raise SetupError(f"cannot save {where}: {problem}")
    return leaf


def _why_not_storable(tensor: torch.Tensor) -> str | None:
    if tensor.layout is not torch.strided:
        return f"a {str(tensor.layout).removeprefix('torch.')} tensor; convert it with .to_dense()"
    if tensor.is_quantized:
        return "a quantized tensor; save its int_repr(), scale and zero point"
    if tensor.is_meta:
        return "a tensor on the meta device, which holds no values"
    if torch.nn.parameter.is_lazy(tensor):
        return "a lazy parameter that has no values yet; run one forward pass first"
    if hasattr(tensor, "__tensor_flatten__"):
        return f"a part of a DTensor that is itself a {type(tensor).__name__}, made of several tensors"
    return None


def _array_as_tensor(array: np.ndarray[Any, Any], where: str) -> torch.Tensor:
    if array.dtype.hasobject:
        raise SetupError(f"cannot save {where}: a NumPy array of Python objects")
    # Raw bytes: every NumPy type, byte order and record layout survives, also those torch does not know.
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if not flat.flags.writeable:
        flat = flat.copy()
    return torch.from_numpy(flat)


def describe_leaf(leaf: torch.Tensor | np.ndarray[Any, Any], name: str) -> dict[str, Any]:
    """The skeleton's entry for a tensor: what the image's header alone cannot say."""
    entry: dict[str, Any] = {"name": name}
    if isinstance(leaf, np.ndarray):
        entry["numpy"] = [describe_array_type(leaf.dtype), list(leaf.shape)]
        return entry
    if is_sharded(leaf):
        region = region_of(leaf, name)
        entry["global"], entry["offset"] = list(leaf.shape), list(region.offset)
        leaf = local_of(leaf).contiguous()  # its strides are the live one's business when it comes back
    if leaf.dtype not in CODES:
        entry["dtype"] = dtype_name(leaf.dtype)
        entry["shape"] = list(leaf.shape)
    if not leaf.is_contiguous():
        entry["stride"] = _dense_stride(leaf)
    return entry


def _dense_stride(tensor: torch.Tensor) -> list[int]:
    """Its strides where they describe a dense, non-overlapping layout (channels_last, transposed); for a
    view with gaps or repeats, the layout that `clone` would give."""
    return list(torch.empty_like(tensor, device="meta", memory_format=torch.preserve_format).stride())


def leaf_from_bytes(entry: dict[str, Any], code: str, shape: Sequence[int], raw: torch.Tensor) -> Any:
    """The leaf again, as a view of `raw` (uint8) where its layout allows it."""
    leaf = _leaf_from_bytes(entry, code, shape, raw)
    if "device" in entry:
        setattr(leaf, SAVED_FROM, str(entry["device"]))
    return leaf


def _leaf_from_bytes(entry: dict[str, Any], code: str, shape: Sequence[int], raw: torch.Tensor) -> Any:
    if "numpy" in entry:
        words, array_shape = entry["numpy"]
        return raw.numpy().view(array_type_from(words)).reshape(array_shape).copy()
    dtype_ = dtype_from_name(entry["dtype"]) if "dtype" in entry else _BY_CODE[code]
    tensor = raw.view(dtype_).reshape(tuple(entry.get("shape", shape)))
    if "stride" in entry:
        # Bytes as bytes: torch holds types of 1 to 7 bits and does not copy them.
        plain = tensor.view(torch.uint8) if dtype_.itemsize == 1 else tensor
        stride = _checked_stride(tensor, entry["stride"])
        return torch.empty_strided(plain.shape, stride, dtype=plain.dtype).copy_(plain).view(dtype_)
    return tensor


def _checked_stride(tensor: torch.Tensor, stride: list[int]) -> list[int]:
    span = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, stride, strict=True) if size)
    if any(step < 0 for step in stride) or span > max(tensor.numel(), 1):
        raise CorruptCheckpoint(f"stored strides {stride} do not fit a tensor of shape {list(tensor.shape)}")
    return stride


_BY_CODE = {code: dtype for dtype, code in CODES.items()}
