"""A manifest reads back as it was written, and only if every byte is."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import CorruptCheckpoint, HoldfastError, InternalError, SaveError
from holdfast.format.checksum import chunk_count
from holdfast.format.manifest import FileRecord, Manifest, Parent, parse_manifest, utc_text
from holdfast.format.sealed import check_seal, seal, seal_of, unseal

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
json_objects = st.dictionaries(st.text(max_size=8), json_values, max_size=3)
hexes = st.integers(0, 2**128 - 1).map("{:032x}".format)


@st.composite
def file_records(draw: st.DrawFn) -> FileRecord:
    chunk = draw(st.sampled_from([4096, 16 << 20]))
    size = draw(st.integers(0, 5 * chunk))
    digests = draw(st.lists(hexes, min_size=chunk_count(size, chunk), max_size=chunk_count(size, chunk)))
    name = draw(st.from_regex(r"[a-z0-9][a-z0-9._-]{0,20}", fullmatch=True).filter(str.isascii))
    return FileRecord(name, size, draw(st.text(max_size=5)), "xxh3-128", chunk, tuple(digests))


manifests = st.builds(
    Manifest,
    store=st.uuids().map(str),
    writer_epoch=st.integers(0, 10**8 - 1),
    step=st.integers(0, 10**12 - 1),
    nonce=st.integers(0, 2**32 - 1).map("{:08x}".format),
    parent=st.none() | st.just(Parent("e00000001-s000000000001-00000001", "ab" * 32)),
    created=st.text(max_size=10),
    reason=st.text(max_size=10),
    files=st.lists(file_records(), max_size=3, unique_by=lambda record: record.name).map(tuple),
    progress=json_objects,
    values=json_objects,
    contains=json_objects,
    environment=json_objects,
    metrics=st.dictionaries(st.text(max_size=5), st.floats(allow_nan=False), max_size=3),
    tags=st.lists(st.text(max_size=5), max_size=3).map(tuple),
    notes=st.text(max_size=10),
    keep=st.none() | st.text(max_size=5),
)


def manifest(**changes: Any) -> Manifest:
    said: dict[str, Any] = {
        "store": "01234567-89ab-cdef-0123-456789abcdef", "writer_epoch": 1, "step": 2, "nonce": "00000003",
        "parent": None, "created": "now", "reason": "test", "files": (),
    }  # fmt: skip
    return Manifest(**{**said, **changes})


@given(manifests)
def test_a_manifest_reads_back(original: Manifest) -> None:
    assert parse_manifest(original.to_bytes()) == original


@given(manifests)
def test_equal_manifests_are_equal_bytes(original: Manifest) -> None:
    assert parse_manifest(original.to_bytes()).to_bytes() == original.to_bytes()


@given(st.binary(max_size=400))
def test_noise_is_never_a_manifest(data: bytes) -> None:
    with pytest.raises(CorruptCheckpoint):
        parse_manifest(data)


@given(json_objects)
def test_a_sealed_record_that_is_no_manifest_is_refused(record: dict[str, Any]) -> None:
    with pytest.raises(CorruptCheckpoint):
        parse_manifest(seal(record))


@given(st.data())
def test_any_cut_or_flip_breaks_the_seal(data: st.DataObject) -> None:
    whole = manifest().to_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(CorruptCheckpoint):
        check_seal(whole[:at])
    changed = bytearray(whole)
    changed[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptCheckpoint):
        check_seal(bytes(changed))


def test_metrics_that_are_not_finite_survive() -> None:
    metrics = {"a": math.nan, "b": math.inf, "c": -math.inf, "d": -0.0, "e": 5}
    back = parse_manifest(manifest(metrics=metrics).to_bytes()).metrics
    assert math.isnan(back["a"])
    assert (back["b"], back["c"], back["e"]) == (math.inf, -math.inf, 5.0)
    assert math.copysign(1, back["d"]) == -1


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"a": [1, math.nan]}, r"progress\.a\[1\] is nan"),
        ({"a": math.inf}, r"progress\.a is inf"),
        ({1: "x"}, "progress has the key 1"),
        ({"a": (1, 2)}, r"progress\.a is a tuple"),
        ({"a": {"b": b"x"}}, r"progress\.a\.b is a bytes"),
    ],
)
def test_what_json_would_change_in_silence_is_refused_by_its_path(value: Any, said: str) -> None:
    with pytest.raises(SaveError, match=said):
        manifest(progress=value).to_bytes()


@pytest.mark.parametrize(
    "changes",
    [{"store": "x"}, {"step": 10**12}, {"nonce": "x"}, {"reason": None}, {"tags": (1,)}, {"keep": True}],
)
def test_what_would_not_read_back_is_not_written(changes: dict[str, Any]) -> None:
    with pytest.raises(HoldfastError):
        manifest(**changes).to_bytes()


@pytest.mark.parametrize(
    "line",
    [
        b'{"a":1,"a":1}', b'{"a": 1}', b'{"b":1,"a":1}', b'{"a":1.0e0}', b'{"a":NaN}', b"[]", b'"x"', b"{",
        b"", '{"a":"ä"}'.encode(), b'{"a":1}\n{"b":1}', b'{"a":' + b"9" * 5000 + b"}",
    ],
)  # fmt: skip
def test_only_the_canonical_spelling_opens(line: bytes) -> None:
    import hashlib

    line += b"\n"
    with pytest.raises(CorruptCheckpoint):
        unseal(line + b"sha256:" + hashlib.sha256(line).hexdigest().encode() + b"\n")


def test_the_seal_names_the_record() -> None:
    data = seal({"a": 1})
    assert data.decode() == '{"a":1}\nsha256:' + seal_of(data) + "\n"


@pytest.mark.parametrize("record", [{"a": {1, 2}}, {"a": math.nan}, {"a": "x" * (257 << 20)}])
def test_what_cannot_be_sealed_is_our_bug(record: dict[str, Any]) -> None:
    with pytest.raises(InternalError):
        seal(record)


def test_a_manifest_knows_its_name_and_size() -> None:
    record = FileRecord("a.bin", 10, "model", "xxh3-128", 4096, ("0" * 32,))
    one = manifest(files=(record, record))
    assert str(one.name) == "e00000001-s000000000002-00000003"
    assert one.total_bytes == 20


def test_times_are_written_in_utc() -> None:
    assert utc_text(0.0) == "1970-01-01T00:00:00.000+00:00"


@pytest.mark.parametrize("dense", [b"[],", b"{},", b"1,"])
def test_a_record_that_would_take_much_memory_is_refused_before_it_is_parsed(dense: bytes) -> None:
    import hashlib
    import tracemalloc

    line = b'{"x":[' + dense * ((16 << 20) // len(dense)) + b"0]}\n"
    data = line + b"sha256:" + hashlib.sha256(line).hexdigest().encode() + b"\n"
    tracemalloc.start()
    try:
        with pytest.raises(CorruptCheckpoint, match="more values"):
            unseal(data)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_a_manifest_of_16_mb_of_digests_is_read_in_64_mb() -> None:
    import tracemalloc

    count, chunk = (16 << 20) // 35, 16 << 20
    digests = tuple(f"{i:032x}" for i in range(count))
    data = manifest(files=(FileRecord("a.bin", count * chunk, "", "xxh3-128", chunk, digests),)).to_bytes()
    assert len(data) > 15 << 20
    tracemalloc.start()
    try:
        read = parse_manifest(data)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    assert read.files[0].digests == digests
    with pytest.raises(CorruptCheckpoint, match="canonical"):
        unseal(resealed(data.replace(b'","', b'", "', 1)))


def resealed(data: bytes) -> bytes:
    import hashlib

    line = data[: data.rindex(b"sha256:")]
    return line + b"sha256:" + hashlib.sha256(line).hexdigest().encode() + b"\n"


@given(json_objects, st.integers(0, 9000))
def test_only_the_one_spelling_is_read_however_long_its_lists(record: dict[str, Any], length: int) -> None:
    data = seal({**record, "long": list(range(length)), "deep": {"a": [{"b": ["c"] * length}]}})
    assert unseal(data)["long"] == list(range(length))
    spelled = b'"deep":{"a":[{"b":['
    for at in range(len(b'"deep"'), len(spelled) + 1):
        # A space between any two of its signs; inside of a name it is another name.
        other = spelled[:at] + b" " + spelled[at:]
        if other.count(b'"a"') == other.count(b'"b"') == 1:
            with pytest.raises(CorruptCheckpoint):
                unseal(resealed(data.replace(spelled, other, 1)))


def test_what_is_inside_strings_does_not_count_as_values() -> None:
    text = '{"name":[1,2],"other":{"a":[0]}},' * 100_000
    assert unseal(seal({"header": text})) == {"header": text}
