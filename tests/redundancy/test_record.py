"""A parity record reads back as it was written; anything else is refused before it is acted on."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import CorruptCheckpoint, SetupError
from holdfast.redundancy.record import Member, MemberFile, ParityRecord, default_code, parse_record
from holdfast.redundancy.scheme import PARTNER, SINGLE, parse_scheme

RS = parse_scheme("rs:2+1")


def record(**changes: Any) -> ParityRecord:
    members = tuple(Member(f"m{n}", (MemberFile("a", n), MemberFile("sub/B.bin", 7))) for n in range(3))
    said: dict[str, Any] = {"scheme": RS, "code": "cauchy-bits", "members": members}
    return ParityRecord(**{**said, **changes})


@given(
    st.sampled_from(["xor:2", "rs:1+2"]),
    st.lists(st.lists(st.integers(0, 1 << 50), max_size=3), min_size=3, max_size=5),
)
def test_a_record_reads_back_as_it_was_written(word: str, sizes: list[list[int]]) -> None:
    scheme = parse_scheme(word)
    members = tuple(
        Member(f"m{n}", tuple(MemberFile(f"f{at}", size) for at, size in enumerate(files)))
        for n, files in enumerate(sizes)
    )
    written = ParityRecord(scheme=scheme, code=default_code(scheme), members=members)
    assert parse_record(json.loads(json.dumps(written.to_json()))) == written


@pytest.mark.parametrize(
    "harm",
    [
        lambda r: r.pop("cell_bytes"),
        lambda r: r.update(more=1),
        lambda r: r.update(format=2),
        lambda r: r.update(format=True),
        lambda r: r.update(scheme="rs:2+9"),
        lambda r: r.update(scheme="RS:2+1"),
        lambda r: r.update(scheme="single"),
        lambda r: r.update(scheme=3),
        lambda r: r.update(code="xor"),
        lambda r: r.update(scheme="partner"),
        lambda r: r.update(code="rot13"),
        lambda r: r.update(code=["xor"]),
        lambda r: r.update(align_bytes=100),
        lambda r: r.update(align_bytes=0),
        lambda r: r.update(cell_bytes=64.0),
        lambda r: r.update(cell_bytes=True),
        lambda r: r.update(members={}),
        lambda r: r.update(members=r["members"][:2]),
        lambda r: r["members"].append(r["members"][0]),
        lambda r: r["members"][0].update(rank=0),
        lambda r: r["members"][0].update(name="../m0"),
        lambda r: r["members"][0].update(name=""),
        lambda r: r["members"][0].update(files="a"),
        lambda r: r["members"][0]["files"].append({"name": "a", "size": 1}),
        lambda r: r["members"][0]["files"][0].update(size=-1),
        lambda r: r["members"][0]["files"][0].update(size=True),
        lambda r: r["members"][0]["files"][0].update(size=1 << 60),
        lambda r: r["members"][0]["files"][0].update(name="../a"),
        lambda r: r["members"][0]["files"][0].update(name="/a"),
        lambda r: r["members"][0]["files"][0].update(name="a/../../b"),
        lambda r: r["members"][0]["files"][0].update(name="a\n"),
        lambda r: r["members"][0]["files"][0].update(mode=7),
    ],
)
def test_a_record_that_was_changed_is_refused(harm: Any) -> None:
    raw = json.loads(json.dumps(record().to_json()))
    assert parse_record(raw) == record()
    harm(raw)
    with pytest.raises(CorruptCheckpoint):
        parse_record(raw)


@pytest.mark.parametrize("raw", [None, [], "x", {}, {"format": 1}])
def test_what_is_no_record_at_all_is_refused(raw: Any) -> None:
    with pytest.raises(CorruptCheckpoint):
        parse_record(raw)


def test_a_record_that_could_not_be_read_back_is_not_made() -> None:
    with pytest.raises(SetupError, match="has no code"):
        record(code="xor")
    with pytest.raises(SetupError, match="needs 3 different members"):
        record(members=record().members[:2])
    for scheme in (SINGLE, PARTNER):
        with pytest.raises(SetupError, match="stores no parity"):
            default_code(scheme)
