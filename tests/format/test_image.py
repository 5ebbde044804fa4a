"""Image headers: planned ones read back and satisfy safetensors; hostile ones are refused."""

import json
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import CorruptCheckpoint, InternalError
from holdfast.format.image import ITEM_BYTES, PAGE, TensorSpec, parse_image, plan_image

specs = st.lists(
    st.builds(
        TensorSpec,
        name=st.text(st.characters(min_codepoint=32, exclude_categories=["Cs"]), min_size=1, max_size=20),
        dtype=st.sampled_from(sorted(ITEM_BYTES)),
        shape=st.lists(st.integers(0, 5), max_size=4).map(tuple),
    ),
    max_size=8,
    unique_by=lambda spec: spec.name,
)


@given(specs, st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2))
def test_a_planned_image_reads_back(tensors: list[TensorSpec], metadata: dict[str, str]) -> None:
    if any(spec.name == "__metadata__" for spec in tensors):
        return
    layout = plan_image(tensors, metadata)
    assert layout.data_start % PAGE == 0
    back = parse_image(layout.header, layout.size)
    assert (back.tensors, back.spans, back.metadata) == (layout.tensors, layout.spans, layout.metadata)


@settings(max_examples=50)
@given(specs)
def test_safetensors_reads_what_we_plan(tensors: list[TensorSpec]) -> None:
    safetensors = pytest.importorskip("safetensors")
    layout = plan_image(tensors, {"a": "b"})
    image = layout.header + bytes(layout.size - layout.data_start)
    read = dict(safetensors.deserialize(image))
    assert {name: tuple(info["shape"]) for name, info in read.items()} == {s.name: s.shape for s in tensors}


def header(entries: Any, *, text: bytes | None = None) -> bytes:
    body = text if text is not None else json.dumps(entries).encode()
    return struct.pack("<Q", len(body)) + body


def entry(begin: int = 0, end: int = 4, **changes: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [1], "data_offsets": [begin, end], **changes}


HOSTILE: dict[str, Any] = {
    "a list": [],
    "an entry that is no object": {"a": 1},
    "an extra field": {"a": entry(hook="x")},
    "a missing field": {"a": {"dtype": "F32", "shape": [1]}},
    "an unknown type": {"a": entry(dtype="F128")},
    "a type that is a list": {"a": entry(dtype=["F32"])},
    "a negative dimension": {"a": entry(shape=[-1])},
    "a fractional dimension": {"a": entry(shape=[1.0])},
    "a dimension that is true": {"a": entry(shape=[True])},
    "a shape that overflows 64 bits": {"a": entry(shape=[1 << 33, 1 << 33])},
    "endless dimensions": {"a": entry(shape=[1] * 65)},
    "reversed offsets": {"a": entry(4, 0)},
    "three offsets": {"a": entry(data_offsets=[0, 4, 8])},
    "offsets that do not fit the shape": {"a": entry(0, 8)},
    "a hole": {"a": entry(0, 4), "b": entry(8, 12)},
    "an overlap": {"a": entry(0, 4), "b": entry(0, 4)},
    "a hole at the start": {"a": entry(4, 8)},
    "an end beyond the file": {"a": entry(0, 4), "b": entry(4, 8), "c": entry(8, 12)},
    "bytes nobody owns": {},
    "a name with a control character": {"a\n": entry(), "b": entry(4, 8)},
    "an endless name": {"a" * 513: entry(), "b": entry(4, 8)},
    "metadata that is a list": {"__metadata__": [], "a": entry(), "b": entry(4, 8)},
    "metadata that is a number": {"__metadata__": {"a": 1}, "a": entry(), "b": entry(4, 8)},
}


@pytest.mark.parametrize("how", HOSTILE)
def test_a_hostile_header_is_refused(how: str) -> None:
    data = header(HOSTILE[how])
    with pytest.raises(CorruptCheckpoint):
        parse_image(data, len(data) + 8)


def test_the_harness_builds_headers_that_pass_when_honest() -> None:
    data = header({"a": entry(), "b": entry(4, 8)})
    assert parse_image(data, len(data) + 8).spans["b"] == (len(data) + 4, len(data) + 8)


@pytest.mark.parametrize(
    "text",
    [b"", b" {}", b"{", b"null", b'{"a":1,"a":1}', b"{" * 100_000, b"\xff{}", b'{"a":NaN}', b"[" * 100_000],
)
def test_what_is_not_an_object_in_json_is_refused(text: bytes) -> None:
    data = header(None, text=text)
    with pytest.raises(CorruptCheckpoint):
        parse_image(data, len(data))


@pytest.mark.parametrize(
    "first",
    [b"", b"\0" * 7, struct.pack("<Q", 2**64 - 1), struct.pack("<Q", (64 << 20) + 1), struct.pack("<Q", 3)],
)
def test_an_impossible_length_field_is_refused(first: bytes) -> None:
    with pytest.raises(CorruptCheckpoint):
        parse_image(first + b"{}", 10)


@settings(max_examples=300)
@given(st.binary(max_size=200), st.integers(0, 300))
def test_noise_never_crashes_the_parser(noise: bytes, size: int) -> None:
    data = struct.pack("<Q", len(noise)) + noise
    try:
        layout = parse_image(data, size)
    except CorruptCheckpoint:
        return
    assert all(0 <= begin <= end <= size for begin, end in layout.spans.values())


def test_two_tensors_of_one_name_are_our_bug() -> None:
    twice = [TensorSpec("a", "F32", (1,))] * 2
    with pytest.raises(InternalError):
        plan_image(twice, {})
