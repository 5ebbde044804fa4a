"""Every loss that a code promises to survive is survived bit for bit; every other one is refused."""

from itertools import chain, combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import InternalError, RestoreError, SetupError
from holdfast.redundancy.cauchy import CELL_BYTES, cauchy_rows
from holdfast.redundancy.codes import Code, CodeName, Combination
from holdfast.redundancy.galois import bit_matrix, dot, inverse, invert, multiply
from holdfast.redundancy.plan import BlockBuilder

GOLDEN_CAUCHY_BITS = (
    "07752bdd501681b350857f7af389d7e8fff4feb9bd4bb6f4884f7aeafbac6587"
    "5ffa8761bcbc905f589bcd9b2168a51aaf19747e6606be69d2b7b28fbadf308b"
)
SHAPES: list[tuple[CodeName, int, int]] = [
    ("xor", 1, 1),
    ("xor", 5, 1),
    *(("cauchy-bits", d, p) for d, p in [(1, 1), (1, 3), (2, 2), (4, 1), (4, 3), (6, 2), (3, 4)]),
]


def random_blocks(count: int, size: int, seed: int = 0) -> list[bytes]:
    return [
        block.tobytes() for block in np.random.default_rng(seed).integers(0, 256, (count, size), np.uint8)
    ]


def combine(
    combination: Combination, blocks: dict[int, bytes], size: int, cell: int = 64
) -> dict[int, bytes]:
    builder = BlockBuilder(combination, size, cell_bytes=cell)
    for block in combination.inputs:
        builder.add(block, blocks[block])
    return {block: builder.block(block).tobytes() for block in combination.outputs}


def whole_stripe(code: Code, size: int, cell: int = 64) -> dict[int, bytes]:
    blocks = dict(enumerate(random_blocks(code.data, size)))
    return blocks | combine(code.encoding(), blocks, size, cell)


@pytest.mark.parametrize(("name", "data", "parity"), SHAPES)
def test_every_loss_up_to_the_promise_is_rebuilt_bit_for_bit(name: CodeName, data: int, parity: int) -> None:
    code, size = Code(name, data, parity), 192
    stripe = whole_stripe(code, size)
    patterns = chain.from_iterable(combinations(stripe, lost) for lost in range(1, parity + 1))
    for lost in patterns:
        left = {block: value for block, value in stripe.items() if block not in lost}
        assert combine(code.combination(left, lost), left, size) == {block: stripe[block] for block in lost}


@pytest.mark.parametrize(("name", "data", "parity"), SHAPES)
def test_one_loss_more_is_refused_and_never_guessed(name: CodeName, data: int, parity: int) -> None:
    code = Code(name, data, parity)
    for lost in combinations(range(data + parity), parity + 1):
        with pytest.raises(RestoreError, match="are needed"):
            code.combination(set(range(data + parity)) - set(lost), lost)


def test_a_wide_set_decodes() -> None:
    code = Code("cauchy-bits", 124, 4)
    stripe = whole_stripe(code, 64)
    lost = (0, 77, 124, 127)
    left = {block: value for block, value in stripe.items() if block not in lost}
    assert combine(code.combination(left, lost), left, 64) == {block: stripe[block] for block in lost}


@pytest.mark.parametrize("name", ["xor", "cauchy-bits"])
def test_the_first_parity_block_is_plain_xor(name: CodeName) -> None:
    code = Code(name, 5, 1 if name == "xor" else 3)
    stripe = whole_stripe(code, 128)
    expected = np.bitwise_xor.reduce([np.frombuffer(stripe[j], np.uint8) for j in range(5)])
    assert stripe[5] == expected.tobytes()


def test_a_single_loss_is_rebuilt_by_xor_alone() -> None:
    combination = Code("cauchy-bits", 6, 2).combination({0, 1, 2, 4, 5, 6, 7}, [3])
    assert combination.inputs == (0, 1, 2, 4, 5, 6)
    assert combination.coefficients == ((1,) * 6,)


def test_the_coefficients_on_disk_never_change() -> None:
    assert cauchy_rows(6, 2) == ((1, 1, 1, 1, 1, 1), (92, 172, 1, 217, 143, 101))
    assert sum(len(bit_matrix(c)) for row in cauchy_rows(6, 2) for c in row) == 185
    assert whole_stripe(Code("cauchy-bits", 3, 2), 64)[4].hex() == GOLDEN_CAUCHY_BITS


def test_bit_matrices_multiply_as_the_field_does() -> None:
    # One symbol per bit position: strips of one byte, eight symbols side by side.
    for factor, value in product((1, 2, 29, 142, 255), range(256)):
        result = 0
        for b, t in bit_matrix(factor):
            result ^= (value >> b & 1) << t
        assert result == multiply(factor, value)


def test_the_field_is_a_field() -> None:
    for a in range(1, 256):
        assert multiply(a, inverse(a)) == 1
    rng = np.random.default_rng(1)
    for a, b, c in rng.integers(0, 256, (500, 3)).tolist():
        assert multiply(a, b) == multiply(b, a)
        assert multiply(a, multiply(b, c)) == multiply(multiply(a, b), c)
        assert multiply(a, b ^ c) == multiply(a, b) ^ multiply(a, c)
    assert multiply(2, 0x80) == 0x1D


def test_every_square_part_of_the_generators_can_be_inverted() -> None:
    for size in (1, 2, 3):
        for picked, columns in product(combinations(cauchy_rows(6, 3), size), combinations(range(6), size)):
            part = [[row[c] for c in columns] for row in picked]
            undone = invert(part)
            assert [[dot(undone[i], [row[j] for row in part]) for j in range(size)] for i in range(size)] == [
                [int(i == j) for j in range(size)] for i in range(size)
            ]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_parity_is_the_same_however_the_chunks_arrive(data: st.DataObject) -> None:
    code, size, cell = Code("cauchy-bits", 3, 2), 64 * data.draw(st.integers(1, 9)), 128
    lengths = {block: data.draw(st.integers(0, size)) for block in range(3)}
    blocks = {block: random_blocks(1, lengths[block], block)[0] for block in range(3)}
    whole = combine(code.encoding(), {b: v.ljust(size, b"\0") for b, v in blocks.items()}, size, cell)
    chunks = []
    for block, length in lengths.items():
        cuts = data.draw(st.lists(st.integers(0, length), max_size=3).map(sorted))
        chunks += [(block, a, b) for a, b in zip([0, *cuts], [*cuts, length], strict=True)]
    builder = BlockBuilder(code.encoding(), size, lengths=lengths, cell_bytes=cell)
    for block, start, stop in data.draw(st.permutations(chunks)):
        builder.add(block, blocks[block][start:stop], start)
    assert {block: builder.block(block).tobytes() for block in (3, 4)} == whole


def test_the_default_cells_decode_blocks_longer_and_shorter_than_a_cell() -> None:
    code = Code("cauchy-bits", 2, 2)
    for size in (64, CELL_BYTES, CELL_BYTES + 64):
        stripe = whole_stripe(code, size, CELL_BYTES)
        left = {2: stripe[2], 3: stripe[3]}
        assert combine(code.combination(left, [0, 1]), left, size, CELL_BYTES) == {0: stripe[0], 1: stripe[1]}


def test_a_sum_with_bytes_missing_is_not_given_out() -> None:
    builder = BlockBuilder(Code("xor", 2, 1).encoding(), 10)
    builder.add(0, b"0123456789")
    builder.add(1, b"0123", 3)
    with pytest.raises(InternalError, match=r"blocks \[1\] have not come"):
        builder.block(2)


def test_bytes_beyond_a_block_are_refused() -> None:
    builder = BlockBuilder(Code("xor", 2, 1).encoding(), 10, lengths={1: 2})
    with pytest.raises(InternalError, match="more than it has"):
        builder.add(0, b"abc", 8)
    with pytest.raises(InternalError, match="more than it has"):
        builder.add(1, b"abc")
    with pytest.raises(InternalError, match="no input"):
        builder.add(2, b"abc")


def test_bit_matrices_refuse_sizes_they_cannot_cut() -> None:
    with pytest.raises(InternalError, match="multiples of 64"):
        BlockBuilder(Code("cauchy-bits", 2, 2).encoding(), 65)


@pytest.mark.parametrize(("name", "data", "parity"), [("xor", 3, 2), ("cauchy-bits", 250, 7)])
def test_codes_that_do_not_exist_are_refused(name: CodeName, data: int, parity: int) -> None:
    with pytest.raises(SetupError):
        Code(name, data, parity)
