"""The small number types that JAX and others use in NumPy arrays (bfloat16, float8, int4): a library of their
own, needed only by who has such arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from holdfast.errors import IncompatibleState

LIBRARY = "ml_dtypes"


def is_small_type(dtype: np.dtype[Any]) -> bool:
    return dtype.type.__module__ == LIBRARY


def small_type(name: Any) -> np.dtype[Any]:
    """By its name. The library is imported, for its name stands here and not in the file."""
    try:
        import ml_dtypes
    except ImportError as error:
        raise IncompatibleState(
            f"the checkpoint holds a NumPy array of {str(name)[:40]}", hint="install ml_dtypes to read it"
        ) from error
    found = vars(ml_dtypes).get(name) if isinstance(name, str) else None
    if not (isinstance(found, type) and issubclass(found, np.generic)):
        raise ValueError(f"{LIBRARY} has no type {str(name)[:40]!r}")
    return np.dtype(found)
