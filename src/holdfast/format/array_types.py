"""A NumPy type as JSON and back, records with nested fields, gaps and sub-arrays included.

Only types whose bytes are their value: an object type is refused, because its bytes are addresses.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from holdfast.errors import CorruptCheckpoint, SetupError
from holdfast.format.ml_dtypes_types import LIBRARY, is_small_type, small_type


def describe_array_type(dtype: np.dtype[Any]) -> Any:
    """ "<f4" for plain types; for records what np.dtype needs to lay every field where it was."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return {"base": describe_array_type(base), "shape": list(shape)}
    if is_small_type(dtype):
        # To NumPy they are so many bytes without a meaning: "<V2".
        return {LIBRARY: dtype.type.__name__}
    if dtype.names is None or dtype.fields is None:
        if np.dtype(dtype.str) != dtype:
            raise SetupError(f"a NumPy array of the type {dtype.name} cannot be saved")
        return dtype.str
    fields = [dtype.fields[name] for name in dtype.names]
    return {
        "names": list(dtype.names),
        "formats": [describe_array_type(field[0]) for field in fields],
        "offsets": [field[1] for field in fields],
        "itemsize": dtype.itemsize,
        "aligned": dtype.isalignedstruct,
    }


def array_type_from(words: Any) -> np.dtype[Any]:
    """The type again; CorruptCheckpoint for what is none."""
    try:
        dtype = _build(words)
    except (TypeError, ValueError, KeyError, SyntaxError, RecursionError) as error:
        raise CorruptCheckpoint(f"unknown NumPy type {str(words)[:80]}: {error}") from error
    if dtype.hasobject:
        raise CorruptCheckpoint("a stored NumPy array claims to hold Python objects")
    return dtype


def _build(words: Any) -> np.dtype[Any]:
    if isinstance(words, str):
        return np.dtype(words)
    if LIBRARY in words:
        return small_type(words[LIBRARY])
    if "base" in words:
        return np.dtype((_build(words["base"]), tuple(words["shape"])))
    record: Any = {**words, "formats": [_build(part) for part in words["formats"]]}
    aligned = record.pop("aligned")
    built: np.dtype[Any] = np.dtype(record, align=aligned)
    return built
