"""Every way to lose or damage nodes ends as the model of survival says: restored bit for bit, or refused."""

import random
import sys
from collections.abc import Iterator
from itertools import combinations, product
from pathlib import Path

import pytest
from cluster import Cluster, damage

from holdfast.errors import RestoreError

sys.path.insert(0, str(Path(__file__).parents[1] / "redundancy"))
from survival import unrecoverable

# Equally much on every node, in other files: here the model is exact.
EVEN = [
    [0, 200_000, 1], [200_001], [12_345, 183_560, 4096], [100_000, 100_001],
    [200_001, 0], [9, 199_992], [123_456, 76_545], [1, 4096, 195_904],
]  # fmt: skip
# Empty, shorter than a page, one much larger. Where a stream has ended its padding cannot be lost, so more
# may be saved than the model promises, and never less.
UNEVEN = [
    [0, 5000, 1], [70_001], [12_345, 300_000, 4096], [100],
    [64_000, 64_001], [0, 9], [123_456], [4096, 4097],
]  # fmt: skip


def ways_to_lose(nodes: list[str], most: int) -> Iterator[dict[str, str]]:
    for count in range(1, most + 1):
        for which in combinations(nodes, count):
            for how in product(("lose", "corrupt"), repeat=count):
                yield dict(zip(which, how, strict=True))


def refusal_of(cluster: Cluster, node: str) -> str | None:
    try:
        cluster.rebuild(node)
    except RestoreError as error:
        return str(error)
    return None


def check(cluster: Cluster, losses: dict[str, str], sizes: list[list[int]]) -> None:
    cluster.recall()
    for node, how in losses.items():
        getattr(cluster, how)(node)
    beyond = unrecoverable(cluster.members.grouping, list(losses))
    for node in losses:
        refusal = refusal_of(cluster, node)
        if refusal is None:
            assert cluster.has_its_files(node), (losses, node)
            assert sizes is UNEVEN or node not in beyond, (losses, node)
        else:
            assert node in beyond, (losses, node)
            assert not cluster.has_its_files(node)
            named = [file for file in cluster.own_files(node) if file in refusal]
            assert node in refusal
            assert named
            assert sizes is UNEVEN or named == [f for f in cluster.own_files(node) if cluster.content[f]]
    assert all(node in losses or cluster.has_its_files(node) for node in cluster.nodes)


@pytest.mark.parametrize("sizes", [EVEN, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize("scheme", ["single", "partner", "xor:4", "rs:2+2"])
def test_up_to_two_of_four_nodes_lost_or_damaged(scheme: str, sizes: list[list[int]]) -> None:
    with Cluster(scheme, sizes[:4]) as cluster:
        cluster.protect_all()
        cluster.remember()
        for losses in ways_to_lose(cluster.nodes, 2):
            check(cluster, losses, sizes)


def test_rs_4_2_survives_every_pair_of_six() -> None:
    luck = random.Random(3)
    with Cluster("rs:4+2", EVEN[:6]) as cluster:
        cluster.protect_all()
        cluster.remember()
        pairs = list(combinations(cluster.nodes, 2))
        assert not any(unrecoverable(cluster.members.grouping, pair) for pair in pairs)
        for pair in pairs:
            check(cluster, dict.fromkeys(pair, "lose"), EVEN)
            check(cluster, {pair[0]: "corrupt", pair[1]: luck.choice(("lose", "corrupt"))}, EVEN)
        for three in luck.sample(list(combinations(cluster.nodes, 3)), 3):
            check(cluster, dict.fromkeys(three, "lose"), EVEN)


@pytest.mark.parametrize("scheme", ["partner", "xor:4", "rs:4+2"])
def test_samples_among_eight_nodes(scheme: str) -> None:
    luck = random.Random(scheme)
    with Cluster(scheme, EVEN) as cluster:
        cluster.protect_all()
        cluster.remember()
        for _ in range(12):
            which = luck.sample(cluster.nodes, luck.randint(1, 4))
            check(cluster, {node: luck.choice(("lose", "corrupt")) for node in which}, EVEN)


@pytest.mark.parametrize("scheme", ["partner", "xor:3"])
def test_three_nodes_make_one_set(scheme: str) -> None:
    with Cluster(scheme, EVEN[:3]) as cluster:
        cluster.protect_all()
        cluster.remember()
        for losses in ways_to_lose(cluster.nodes, 2):
            check(cluster, losses, EVEN)


@pytest.mark.parametrize("scheme", ["partner", "xor:4", "rs:2+2"])
def test_a_replaced_node_protects_the_others_again(scheme: str) -> None:
    with Cluster(scheme, UNEVEN[:4]) as cluster:
        cluster.protect_all()
        # One after the other, each node is lost once: only protection that was renewed can bring back all.
        for node in cluster.nodes:
            cluster.lose(node)
            cluster.rebuild(node)
            renewed = cluster.protect(node)
            assert renewed.written == renewed.kept
            assert cluster.protect(node).written == ()
        assert all(map(cluster.has_its_files, cluster.nodes))


@pytest.mark.parametrize("scheme", ["partner", "xor:4"])
def test_damaged_protection_is_found_by_verifying_and_made_anew(scheme: str) -> None:
    with Cluster(scheme, UNEVEN[:4]) as cluster:
        cluster.protect_all()
        kept = [f for f in cluster.protect("node0").kept if (cluster.place("node0") / f).stat().st_size]
        before = {f: (cluster.place("node0") / f).read_bytes() for f in kept}
        for file in kept:
            damage(cluster.place("node0") / file, 0)
        renewed = cluster.protect("node0", verify=True)
        assert set(renewed.written) == set(kept)
        assert before == {f: (cluster.place("node0") / f).read_bytes() for f in kept}


def test_a_node_that_does_not_answer_is_survived_and_named_when_it_is_needed() -> None:
    with Cluster("xor:4", UNEVEN[:4]) as cluster:
        cluster.protect_all()
        cluster.lose("node1")
        cluster.rebuild("node1")
        assert cluster.has_its_files("node1")
        cluster.lose("node1")
        cluster.servers["node2"].close()
        with pytest.raises(RestoreError, match=r"node2 \(cannot connect"):
            cluster.rebuild("node1")


def test_damage_counts_only_where_it_lies() -> None:
    """Two nodes of one XOR set are damaged, in different stripes: both are mended, chunk by chunk."""
    chunk = 16 << 20
    with Cluster("xor:3", [[2 * chunk + 77], [2 * chunk], [chunk + 5]]) as cluster:
        cluster.protect_all()
        damage(cluster.place("node0") / "part0-r00000.bin", 5)
        damage(cluster.place("node1") / "part0-r00001.bin", chunk - 1)
        for node in ("node0", "node1"):
            rebuilt = cluster.rebuild(node)
            assert rebuilt.from_parity == tuple(cluster.own_files(node))
            assert cluster.has_its_files(node)


def test_a_file_with_good_chunks_on_two_nodes_is_put_together_from_both() -> None:
    chunk = 16 << 20
    with Cluster("partner", [[chunk + 100], [100]]) as cluster:
        cluster.protect_all()
        damage(cluster.place("node0") / "part0-r00000.bin", 50)
        damage(cluster.place("node1") / "part0-r00000.bin", chunk + 50)
        rebuilt = cluster.rebuild("node0")
        assert (rebuilt.copied, rebuilt.from_parity) == (("part0-r00000.bin",), ())
        assert cluster.has_its_files("node0")


def test_space_is_what_the_scheme_says() -> None:
    size = 3_000_000
    for scheme, share in (("partner", 1.0), ("xor:4", 1 / 3), ("rs:2+2", 1.0)):
        with Cluster(scheme, [[size]] * 4) as cluster:
            cluster.protect_all()
            for node in cluster.nodes:
                extra = sum(cluster.near(node).held(cluster.name).values()) - size
                assert extra == pytest.approx(share * size, rel=0.02)
