"""Sets of nodes, encoded and rebuilt by plan: whatever the sizes, what comes back is what was there."""

from itertools import chain, combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from set_of_nodes import SetOfNodes
from survival import beyond_repair, extra_space

from holdfast.errors import InternalError, RestoreError
from holdfast.redundancy.plan import plan_encode, plan_rebuild
from holdfast.redundancy.record import Member, MemberFile, ParityRecord
from holdfast.redundancy.scheme import parse_scheme
from holdfast.redundancy.stripes import Layout, Span

EQUAL = [[300, 100]] * 6
CASES = [
    ("xor:2", 2), ("xor:3", 3), ("xor:4", 6), ("rs:2+2", 4), ("rs:3+2", 6), ("rs:3+3", 6), ("rs:4+2", 6),
]  # fmt: skip


def protected(scheme: str, members: int, window: int = 128) -> SetOfNodes:
    nodes = SetOfNodes(scheme, EQUAL[:members])
    nodes.encode(window=window)
    return nodes


@pytest.mark.parametrize(("scheme", "members"), CASES)
def test_every_loss_is_rebuilt_bit_for_bit_or_refused(scheme: str, members: int) -> None:
    nodes = protected(scheme, members)
    before, names = nodes.contents(), list(nodes.nodes)
    for lost in chain.from_iterable(combinations(names, count) for count in range(1, members)):
        hopeless = beyond_repair(nodes.record.scheme, names, lost)
        if hopeless:
            with pytest.raises(RestoreError, match="cannot be rebuilt"):
                plan_rebuild(nodes.record, lost)
        else:
            nodes.lose(lost)
            nodes.execute(plan_rebuild(nodes.record, lost, window_bytes=128))
            assert nodes.contents() == before


sizes_of_members = st.lists(
    st.lists(st.integers(0, 700) | st.sampled_from([0, 1, 63, 64, 65, 128]), max_size=3),
    min_size=4,
    max_size=7,
)


@settings(max_examples=80, deadline=None)
@given(
    st.data(),
    st.sampled_from(["xor:3", "xor:4", "rs:2+2", "rs:1+3"]),
    sizes_of_members,
    st.sampled_from([64, 128, 192]),
    st.sampled_from([64, 256, 1 << 20]),
)
def test_uneven_empty_and_odd_sizes_come_back(
    data: st.DataObject, scheme: str, sizes: list[list[int]], cell: int, window: int
) -> None:
    nodes = SetOfNodes(scheme, sizes, cell=cell)
    nodes.encode(window=window, together=data.draw(st.booleans()))
    before = nodes.contents()
    lost = data.draw(
        st.lists(st.sampled_from(sorted(nodes.nodes)), max_size=nodes.record.scheme.failures, unique=True)
    )
    nodes.lose(lost)
    nodes.execute(plan_rebuild(nodes.record, lost, window_bytes=window))
    assert nodes.contents() == before


@pytest.mark.parametrize("scheme", ["xor:4", "rs:3+2"])
def test_parity_is_the_same_whoever_computes_it_and_in_windows_of_any_size(scheme: str) -> None:
    contents = []
    for window, together in [(64, False), (1 << 20, False), (192, True)]:
        nodes = SetOfNodes(scheme, [[500], [20, 300], [], [77], [64, 64]])
        nodes.encode(window=window, together=together)
        contents.append(nodes.contents())
    assert contents[0] == contents[1] == contents[2]


@pytest.mark.parametrize(("scheme", "members"), [("xor:4", 4), ("rs:4+2", 6)])
def test_equal_members_store_just_what_the_scheme_says(scheme: str, members: int) -> None:
    nodes = SetOfNodes(scheme, [[64 * 60]] * members)
    extra = extra_space(nodes.record.scheme, members)
    assert {nodes.layout.parity_bytes(name) for name in nodes.nodes} == {round(64 * 60 * extra)}


def test_nobody_stores_the_padding_of_others() -> None:
    nodes = SetOfNodes("xor:3", [[6400], [0], [0]])
    # Member 0 is the only one with data, so the stripe that it holds the parity of is empty.
    assert [nodes.layout.parity_bytes(name) for name in nodes.nodes] == [0, 3200, 3200]


@pytest.mark.parametrize(("scheme", "members"), [("xor:4", 4), ("rs:3+2", 6)])
def test_every_member_has_every_byte_in_one_stripe_and_each_stripe_each_member_once(
    scheme: str, members: int
) -> None:
    layout = protected(scheme, members).layout
    blocks = range(layout.record.block_code.data + layout.record.block_code.parity)
    for member in layout.record.members:
        for kind, size in (("data", member.size), ("parity", layout.parity_bytes(member.name))):
            spans = sorted(
                (span.start, span.stop)
                for stripe in layout.stripes
                for span in [layout.span(stripe, block) for block in blocks]
                if (span.member, span.kind) == (member.name, kind) and span.size
            )
            assert spans[0][0] == 0
            assert spans[-1][1] == size
            assert all(a[1] == b[0] for a, b in pairwise(spans))
    for stripe in layout.stripes:
        holders = [layout.holder(stripe, block) for block in blocks]
        assert len(set(holders)) == len(holders)


def test_damage_in_different_places_is_mended_where_whole_members_would_be_beyond_repair() -> None:
    nodes = protected("xor:4", 4, window=64)
    before = nodes.contents()
    damaged = [
        nodes.layout.span_of_file("m0", "f0", 0, 10),
        nodes.layout.span_of_file("m1", "f1", 90),
        Span("m3", "parity", 100, 101),
    ]
    for span in damaged:
        nodes.harm(span)
    assert nodes.contents() != before
    steps = nodes.execute(plan_rebuild(nodes.record, [], damaged=damaged, window_bytes=64))
    assert nodes.contents() == before
    assert steps == 3, "only what is damaged is rebuilt"


def test_damage_in_the_same_place_is_refused() -> None:
    nodes = protected("xor:3", 3)
    one, other = nodes.layout.span(0, 0), nodes.layout.span(0, 1)
    with pytest.raises(RestoreError, match="m1, m2 cannot be rebuilt"):
        plan_rebuild(nodes.record, [], damaged=[one, other])
    with pytest.raises(RestoreError, match="cannot be rebuilt"):
        plan_rebuild(nodes.record, ["m1"], damaged=[other])


def test_damage_to_a_survivor_that_a_rebuild_needs_is_not_read() -> None:
    nodes = protected("rs:2+2", 4)
    before = nodes.contents()
    damaged = [nodes.layout.span_of_file("m1", "f0")]
    nodes.lose(["m0"])
    nodes.harm(damaged[0])
    nodes.execute(plan_rebuild(nodes.record, ["m0"], damaged=damaged))
    assert nodes.contents() == before


def test_a_member_can_be_rebuilt_although_another_cannot() -> None:
    nodes = protected("xor:4", 4)
    before = nodes.contents()
    # Two blocks of stripe 0 are one too many; the block of m0 lies in another stripe.
    damaged = [nodes.layout.span(0, 0), nodes.layout.span(0, 1), nodes.layout.span(1, 2)]
    assert [span.member for span in damaged] == ["m1", "m2", "m0"]
    for span in damaged:
        nodes.harm(span)
    with pytest.raises(RestoreError, match="m1, m2 cannot"):
        plan_rebuild(nodes.record, [], damaged=damaged)
    with pytest.raises(RestoreError, match="m1 cannot"):
        plan_rebuild(nodes.record, [], damaged=damaged, only=["m1"])
    nodes.execute(plan_rebuild(nodes.record, [], damaged=damaged, only=["m0"]))
    assert nodes.contents()["m0"] == before["m0"]


def test_no_step_reads_more_than_a_window_at_once() -> None:
    nodes = SetOfNodes("rs:2+2", [[10_000]] * 4)
    nodes.encode(window=1024)
    assert nodes.most_read == 1024


def test_one_lost_member_of_many_is_rebuilt_from_as_few_as_suffice() -> None:
    nodes = protected("rs:3+2", 5)
    for step in plan_rebuild(nodes.record, ["m2"]):
        assert len(step.reads) == 3
        assert "m2" not in {span.member for span in step.reads}


def test_windows_of_a_large_set_are_whole_cells_and_pages() -> None:
    members = tuple(Member(f"m{n}", (MemberFile("f", 10**12 + 1),)) for n in range(4))
    record = ParityRecord(scheme=parse_scheme("rs:2+2"), code="cauchy-bits", members=members)
    assert Layout(record).piece_bytes % 4096 == 0
    steps = plan_encode(record, "m0")
    first, second = next(steps), next(steps)
    assert first.size == second.size == 4 << 20
    assert second.writes[0].start == 4 << 20


def test_names_that_are_not_there_are_refused() -> None:
    layout = protected("xor:3", 3).layout
    with pytest.raises(InternalError, match="no member"):
        layout.number("m9")
    with pytest.raises(InternalError, match="no file"):
        layout.span_of_file("m0", "f9")
    with pytest.raises(InternalError, match="only data has files"):
        layout.file_ranges(Span("m0", "parity", 0, 1))
