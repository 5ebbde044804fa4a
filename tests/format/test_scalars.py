"""Every value that is not a tensor comes back as the very same value, of the very same type."""

import json
import math
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import CorruptCheckpoint
from holdfast.format.scalars import ENCODERS, decode_scalar


def through_json(value: Any) -> Any:
    encoded = ENCODERS[type(value)](value)
    return decode_scalar(json.loads(json.dumps(encoded, allow_nan=False)), {})


def bits(value: float) -> bytes:
    return struct.pack(">d", value)


@given(st.floats(allow_nan=True, allow_infinity=True, allow_subnormal=True))
def test_floats_keep_every_bit(value: float) -> None:
    assert bits(through_json(value)) == bits(value)


def test_minus_zero_infinities_and_nan_payloads_survive() -> None:
    odd_nan = struct.unpack(">d", bytes.fromhex("7ff8000000abcdef"))[0]
    for value in (-0.0, math.inf, -math.inf, math.nan, -math.nan, odd_nan, 5e-324, 0.1 + 0.2):
        assert bits(through_json(value)) == bits(value)


@given(st.integers())
def test_integers_of_any_size_survive(value: int) -> None:
    back = through_json(value)
    assert back == value
    assert type(back) is int


def test_huge_integers_survive() -> None:
    # Beyond 4,300 digits Python refuses to write an integer in decimal.
    for value in (2**53, 2**53 + 1, -(2**53) - 1, 2**64 - 1, 10**400, -(7**9000), 2**100_000):
        assert through_json(value) == value


@given(st.text(alphabet=st.characters(codec=None)))
def test_text_survives_with_lone_surrogates(value: str) -> None:
    assert through_json(value) == value


@pytest.mark.parametrize("value", ["", "\ud800", "a\udfffb", "\x00", "😀", "\ud83d\ude00", "tuple", "numpy"])
def test_awkward_text_survives(value: str) -> None:
    assert through_json(value) == value


@given(st.binary())
def test_bytes_survive(value: bytes) -> None:
    assert through_json(value) == value


@given(st.complex_numbers(allow_nan=True, allow_infinity=True))
def test_complex_numbers_keep_every_bit(value: complex) -> None:
    back = through_json(value)
    assert (bits(back.real), bits(back.imag)) == (bits(value.real), bits(value.imag))


@pytest.mark.parametrize("value", [None, True, False])
def test_singletons_survive_as_themselves(value: Any) -> None:
    assert through_json(value) is value


NUMPY_SCALARS = [
    np.bool_(True), np.int8(-3), np.int16(-300), np.int32(7), np.int64(-(2**63)), np.uint8(255),
    np.uint16(65535), np.uint32(2**32 - 1), np.uint64(2**64 - 1), np.float16(-0.0), np.float32(math.nan),
    np.float64(0.1), np.longdouble("0.1"), np.complex64(1 - 2j), np.complex128(complex(math.inf, -0.0)),
    np.clongdouble(1 + 2j), np.longlong(5), np.ulonglong(6), np.datetime64("2024-02-29T12:00:00.123456789"),
    np.datetime64("NaT"), np.timedelta64(5, "ms"), np.str_("ä\ud800"), np.bytes_(b"a\x00b"),
]  # fmt: skip


@pytest.mark.parametrize("value", NUMPY_SCALARS, ids=lambda v: f"{type(v).__name__}")
def test_numpy_scalars_keep_type_and_bits(value: np.generic) -> None:
    back = through_json(value)
    assert type(back) is type(value)
    assert back.dtype == value.dtype
    assert back.tobytes() == value.tobytes()


@pytest.mark.parametrize(
    "damaged",
    [
        ["unheard-of", 1], ["int"], ["int", "x"], ["float", "zz"], ["float", "00"], ["bytes", "!"],
        ["numpy", ["O", "00"]], ["numpy", ["<f4", "0000"]], ["numpy", ["<f4", ""]], ["str", "d8"],
        ["complex", "00"], [[], 1], [], ["int", None], ["numpy", "x"], ["numpy", ["nonsense", "00"]],
    ],
    ids=str,
)  # fmt: skip
def test_damaged_values_are_refused(damaged: Any) -> None:
    with pytest.raises(CorruptCheckpoint, match=r"cannot read the stored value"):
        decode_scalar(damaged, {})
