"""The numbers in a stored tensor's bytes, with NumPy alone: also the types that NumPy does not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def _float8_table(exponent_bits: int, bias: int, *, infinities: bool) -> npt.NDArray[np.float64]:
    """All 256 values of an 8-bit float: sign, exponent, mantissa, as the OCP 8-bit formats define them."""
    mantissa_bits = 7 - exponent_bits
    codes = np.arange(256)
    sign = np.where(codes >> 7, -1.0, 1.0)
    exponent = (codes >> mantissa_bits) & ((1 << exponent_bits) - 1)
    mantissa = (codes & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    normal = (1 + mantissa) * np.exp2(exponent.astype(float) - bias)
    values = np.asarray(sign * np.where(exponent == 0, mantissa * 2.0 ** (1 - bias), normal), np.float64)
    top = exponent == (1 << exponent_bits) - 1
    if infinities:
        values[top] = np.where(mantissa == 0, sign * np.inf, np.nan)[top]
    else:
        # E4M3 in its "fn" form gives up infinities: only the very last code is not a number.
        values[(codes & 0x7F) == 0x7F] = np.nan
    return values


def _float8_scale_table() -> npt.NDArray[np.float64]:
    values: npt.NDArray[np.float64] = np.exp2(np.arange(256) - 127.0)
    values[255] = np.nan
    return values


_TABLES: dict[str, Callable[[], npt.NDArray[np.float64]]] = {
    "float8_e4m3fn": lambda: _float8_table(4, 7, infinities=False),
    "float8_e5m2": lambda: _float8_table(5, 15, infinities=True),
    "float8_e8m0fnu": _float8_scale_table,
}


def numbers_in(raw: Array, kind: str) -> Array | None:
    """`raw` (uint8) as numbers that can be subtracted, or None for a type whose values are not known here."""
    if kind == "bfloat16":
        # The upper half of a float32.
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
    if kind in _TABLES:
        return _TABLES[kind]()[raw]
    try:
        dtype = np.dtype(kind)
    except TypeError:
        return None
    if dtype.kind not in "biufc" or raw.size % dtype.itemsize:
        return None
    return raw.view(dtype)


def largest_difference(a: Array, b: Array) -> float:
    """max |a - b| over the places where both are finite; 0 where there are none."""
    if a.dtype.kind == "b":
        return float(np.any(a != b))
    if a.dtype.kind in "iu":
        # In the unsigned twin: the true distance of two int64 may not fit an int64.
        twin = a.dtype.str.replace("i", "u")
        return float(int((np.maximum(a, b).view(twin) - np.minimum(a, b).view(twin)).max(initial=0)))
    finite = np.isfinite(a) & np.isfinite(b)
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    distance = np.abs(a[finite].astype(wide) - b[finite].astype(wide))
    return float(distance.max(initial=0.0))


# Types that NumPy does not have and whose elements take more than a byte.
_TORCH_ONLY = {"bfloat16": 2, "bits16": 2, "complex32": 4}


def item_bytes(kind: str) -> int:
    """Bytes per element, 1 where that is not known."""
    if kind in _TORCH_ONLY:
        return _TORCH_ONLY[kind]
    try:
        return np.dtype(kind).itemsize
    except TypeError:
        return 1
