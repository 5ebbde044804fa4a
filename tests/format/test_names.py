"""Names go there and back, sort by history, and nothing else passes for one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InternalError
from holdfast.format.names import (
    MAX_STEP,
    MAX_WRITER_EPOCH,
    CheckpointName,
    is_file_name,
    parse_checkpoint_name,
)

names = st.builds(
    CheckpointName,
    st.integers(0, MAX_WRITER_EPOCH),
    st.integers(0, MAX_STEP),
    st.integers(0, 2**32 - 1).map("{:08x}".format),
)


@given(names)
def test_a_name_reads_back(name: CheckpointName) -> None:
    assert parse_checkpoint_name(str(name)) == name


@given(names, names)
def test_text_order_is_history_order(one: CheckpointName, other: CheckpointName) -> None:
    assert (str(one) < str(other)) == (one < other)


def test_a_later_writer_outranks_any_step_of_an_earlier_one() -> None:
    assert CheckpointName(2, 0, "00000000") > CheckpointName(1, MAX_STEP, "ffffffff")


@pytest.mark.parametrize(
    "text",
    [
        "", ".", "..", "e00000007-s000000012000-0badcafe/", "e00000007-s000000012000-0badcafe\n",
        "e00000007-s000000012000-0BADCAFE", "e0000007-s000000012000-0badcafe",
        "e00000007-s00000012000-0badcafe", "e00000007-s000000012000", "e00000007-s000000012000-0badcafe.tmp",
        "x00000007-s000000012000-0badcafe", "e0000000٧-s000000012000-0badcafe",
        "e-0000007-s000000012000-0badcafe", "../e00000007-s000000012000-0badcafe",
    ],
)  # fmt: skip
def test_what_is_almost_a_name_is_not_one(text: str) -> None:
    assert parse_checkpoint_name(text) is None


@given(st.text())
def test_whatever_parses_prints_as_it_was(text: str) -> None:
    name = parse_checkpoint_name(text)
    assert name is None or str(name) == text


@pytest.mark.parametrize(
    ("epoch", "step", "nonce"),
    [
        (-1, 0, "0" * 8),
        (10**8, 0, "0" * 8),
        (0, -1, "0" * 8),
        (0, 10**12, "0" * 8),
        (0, 0, "xyz"),
        (0, 0, "A" * 8),
    ],
)
def test_what_does_not_fit_a_name_is_refused(epoch: int, step: int, nonce: str) -> None:
    with pytest.raises(InternalError):
        CheckpointName(epoch, step, nonce)


@pytest.mark.parametrize("text", ["r00000-000.safetensors", "a", "0", "a" * 128, "a..b", "model.weights_v2"])
def test_data_files_may_be_called(text: str) -> None:
    assert is_file_name(text)


@pytest.mark.parametrize(
    "text",
    ["", ".", "..", ".a", "-a", "_a", "a/b", "a\\b", "a b", "A", "MANIFEST", "a\n", "a\0", "ä", "a" * 129],
)
def test_data_files_may_not_be_called(text: str) -> None:
    assert not is_file_name(text)
