"""What differs between two stored states, leaf by leaf. Compares bits, so -0.0 and NaN payloads count."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast.contents.numbers import item_bytes, largest_difference, numbers_in
from holdfast.contents.state import Leaf, Path, same_value
from holdfast.contents.tensors import StoredTensor

# Tensors are compared a slice at a time, so that the working memory stays small.
_SLICE_BYTES = 16 << 20

Bytes = Callable[[StoredTensor], memoryview]


@dataclass(frozen=True)
class TensorChange:
    """`max_abs` is the largest difference of finite elements; None where the type's values are not known."""

    path: str
    kind: str
    shape: tuple[int, ...]
    elements: int
    differing: int
    max_abs: float | None


@dataclass(frozen=True)
class ValueChange:
    path: str
    before: str
    after: str


@dataclass(frozen=True)
class StateDiff:
    removed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    reshaped: tuple[ValueChange, ...] = ()
    tensors: tuple[TensorChange, ...] = ()
    values: tuple[ValueChange, ...] = ()
    tensors_equal: int = 0
    values_equal: int = 0

    @property
    def is_identical(self) -> bool:
        return not (self.removed or self.added or self.reshaped or self.tensors or self.values)


def compare(
    before: Mapping[Path, Leaf],
    after: Mapping[Path, Leaf],
    bytes_before: Bytes,
    bytes_after: Bytes,
    *,
    equal_files: Collection[str] = (),
) -> StateDiff:
    """Every difference. `bytes_…` give the verified bytes of a tensor when they are needed.

    Tensors in `equal_files`, which have the same digests on both sides, are equal without being read.
    """
    seen: dict[str, list[Any]] = {name: [] for name in ("removed", "reshaped", "tensors", "values")}
    tensors_equal = values_equal = 0
    for path, old in before.items():
        new = after.get(path)
        if new is None:
            seen["removed"].append(old.label)
        elif isinstance(old.value, StoredTensor) and isinstance(new.value, StoredTensor):
            if is_known_equal(old.value, new.value, equal_files):
                tensors_equal += 1
            elif not of_one_form(old.value, new.value):
                seen["reshaped"].append(ValueChange(old.label, _form(old.value), _form(new.value)))
            else:
                change = _changed(old.label, old.value, bytes_before(old.value), bytes_after(new.value))
                seen["tensors"] += [change] if change else []
                tensors_equal += change is None
        elif same_value(old.value, new.value):
            values_equal += 1
        else:
            seen["values"].append(ValueChange(old.label, show_value(old.value), show_value(new.value)))
    return StateDiff(
        added=tuple(leaf.label for path, leaf in after.items() if path not in before),
        tensors_equal=tensors_equal,
        values_equal=values_equal,
        **{name: tuple(found) for name, found in seen.items()},
    )


def is_known_equal(old: StoredTensor, new: StoredTensor, equal_files: Collection[str]) -> bool:
    """Equal without looking: the same bytes of files that are the same."""
    return old == new and all(piece.file in equal_files for piece in old.pieces)


def of_one_form(old: StoredTensor, new: StoredTensor) -> bool:
    """Whether it makes sense to compare the bytes."""
    strides = old.stride == new.stride or not (old.strides_known and new.strides_known)
    return strides and (old.kind, old.shape, old.is_array) == (new.kind, new.shape, new.is_array)


def _form(tensor: StoredTensor) -> str:
    stride = f" with strides {tensor.stride}" if tensor.stride else ""
    return f"{tensor}{stride}{' (NumPy)' if tensor.is_array else ''}"


def _changed(label: str, form: StoredTensor, a: memoryview, b: memoryview) -> TensorChange | None:
    size = item_bytes(form.kind)
    if len(a) % size:
        size = 1
    differing, largest, known = 0, 0.0, True
    for start in range(0, len(a), _SLICE_BYTES):
        one = np.frombuffer(a[start : start + _SLICE_BYTES], dtype=np.uint8)
        two = np.frombuffer(b[start : start + _SLICE_BYTES], dtype=np.uint8)
        if np.array_equal(one, two):
            continue
        differing += int((one.reshape(-1, size) != two.reshape(-1, size)).any(axis=1).sum())
        numbers = numbers_in(one, form.kind), numbers_in(two, form.kind)
        if numbers[0] is None or numbers[1] is None:
            known = False
        else:
            largest = max(largest, largest_difference(numbers[0], numbers[1]))
    if not differing:
        return None
    return TensorChange(label, form.kind, form.shape, len(a) // size, differing, largest if known else None)


def show_value(value: Any) -> str:
    """A short text for a leaf: what it is, if it is too long to show."""
    if isinstance(value, StoredTensor):
        return f"a tensor {value}"
    if isinstance(value, bytes):
        return f"{len(value):,} bytes ({value[:4].hex()}…)" if len(value) > 8 else repr(value)
    if isinstance(value, float) and math.isfinite(value):
        return f"{value!r}"
    text = repr(value) if not isinstance(value, np.generic) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
