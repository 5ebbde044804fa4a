"""Leaves that are not tensors, as JSON that gives back the very same value. No pickle, no guessing.

JSON's own null, true, strings, safe integers and finite floats stand for themselves; everything else is a
two-element list [tag, payload]. Plain lists never occur as a value, so the two cannot be confused.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable
from enum import Enum, Flag
from typing import Any

import numpy as np

from holdfast.errors import CorruptCheckpoint, IncompatibleState
from holdfast.format.loaded_names import class_named, is_named, name_of_class

# Integers up to here survive readers that hold every number as a double.
_SAFE_INTEGER = 2**53

Encoder = Callable[[Any], Any]
Decoder = Callable[[Any], Any]


def _encode_int(value: int) -> Any:
    # In hexadecimal: beyond 4,300 decimal digits Python refuses to convert.
    return value if -_SAFE_INTEGER <= value <= _SAFE_INTEGER else ["int", hex(value)]


def _encode_float(value: float) -> Any:
    # NaN has payload bits and infinities have no JSON: keep the eight bytes.
    return value if math.isfinite(value) else ["float", struct.pack(">d", value).hex()]


def _encode_str(value: str) -> Any:
    try:
        value.encode()
    except UnicodeEncodeError:
        # UTF-32, because in UTF-16 two lone surrogates that stand together become one character.
        return ["str", value.encode("utf-32-be", "surrogatepass").hex()]
    return value


def _encode_numpy(value: np.generic) -> Any:
    code = value.dtype.str
    if np.dtype(code).type is not type(value):
        code = value.dtype.char  # C's long long, which is as long as int64 and yet another type
    return ["numpy", [code, value.tobytes().hex()]]


def encode_enum(value: Enum) -> Any:
    """By its name; a combination of flags has none, and is its number."""
    kind = name_of_class(type(value), repr(value))
    return ["enum", [kind, None, value.value] if isinstance(value, Flag) else [kind, value.name]]


def decode_enum(payload: Any) -> Any:
    """For programs that know the class; others may show the payload."""
    kind = class_named(payload[0], Enum, "a value")
    try:
        return kind(payload[2]) if payload[1] is None else kind[payload[1]]
    except (KeyError, ValueError) as error:
        raise IncompatibleState(f"{payload[0]} has no member {str(payload[1:])[:80]}") from error


def is_scalar(kind: type) -> bool:
    """Whether a class that is not listed below is one of ours after all."""
    return issubclass(kind, Enum) and is_named(kind)


def _itself(value: Any) -> Any:
    return value


ENCODERS: dict[type, Encoder] = {
    type(None): _itself,
    bool: _itself,
    int: _encode_int,
    float: _encode_float,
    str: _encode_str,
    bytes: lambda v: ["bytes", base64.b64encode(v).decode()],
    complex: lambda v: ["complex", struct.pack(">dd", v.real, v.imag).hex()],
    **{
        kind: _encode_numpy
        for kind in (
            np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64,
            np.longlong, np.ulonglong, np.float16, np.float32, np.float64, np.longdouble,
            np.complex64, np.complex128, np.clongdouble, np.datetime64, np.timedelta64,
            np.str_, np.bytes_,
        )
    },
}  # fmt: skip


def _decode_numpy(payload: Any) -> np.generic:
    code, digits = payload
    dtype = np.dtype(code)
    if dtype.hasobject:
        raise ValueError("an object dtype is not a number")
    value: np.generic = np.frombuffer(bytes.fromhex(digits), dtype=dtype)[0]
    return value


DECODERS: dict[str, Decoder] = {
    "int": lambda p: int(p, 16),
    "float": lambda p: struct.unpack(">d", bytes.fromhex(p))[0],
    "str": lambda p: bytes.fromhex(p).decode("utf-32-be", "surrogatepass"),
    "bytes": lambda p: base64.b64decode(p, validate=True),
    "complex": lambda p: complex(*struct.unpack(">dd", bytes.fromhex(p))),
    "numpy": _decode_numpy,
}


def decode_scalar(encoded: Any, foreign: dict[str, Decoder]) -> Any:
    """The value again. `foreign` decodes tags of optional libraries, such as torch.dtype."""
    if not isinstance(encoded, list):
        return encoded
    try:
        tag, payload = encoded
        decode = DECODERS.get(tag) or foreign[tag]
        return decode(payload)
    except (KeyError, ValueError, TypeError, IndexError, struct.error) as error:
        raise CorruptCheckpoint(f"cannot read the stored value {str(encoded)[:80]}: {error!r}") from error
