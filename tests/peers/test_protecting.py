"""Protecting behind training: the newest wins, a failure is told, and nothing half-made gets a name."""

import threading

import pytest
from cluster import Cluster, damage

from holdfast.errors import CorruptCheckpoint, HoldfastError, RestoreError, SetupError
from holdfast.format.checksum import ALGORITHM, CHUNK_BYTES
from holdfast.format.manifest import FileRecord
from holdfast.redundancy.scheme import parse_scheme
from holdfast.redundancy.stripes import Layout
from holdfast.tiers.bandwidth import Cancelled
from holdfast.tiers.protect import Protected, protect
from holdfast.tiers.protect_members import files_by_node, files_dealt_to, rank_of
from holdfast.tiers.protect_record import StoredParity, parity_name, parse_stored_parity
from holdfast.tiers.protect_worker import Protector

NOTHING = Protected("", (), (), 0, 0)


def test_a_newer_checkpoint_calls_off_the_one_under_way_and_only_the_newest_waits() -> None:
    begun, ended = threading.Event(), []

    def work(name: str, cancel: threading.Event) -> Protected:
        if name == "old":
            begun.set()
            assert cancel.wait(30)
            raise Cancelled("called off")
        return NOTHING

    protector = Protector(work, lambda name, outcome: ended.append(name))
    protector.submit("old")
    assert begun.wait(30)
    protector.submit("older than the newest")
    protector.submit("newest")
    assert protector.wait(30)
    assert ended[-1] == "newest"
    assert "old" not in ended
    assert protector.close(30)


def test_a_failure_is_told_and_the_next_one_is_protected() -> None:
    told: dict[str, Protected | HoldfastError] = {}

    def work(name: str, cancel: threading.Event) -> Protected:
        if name == "bad":
            raise RestoreError("a node is gone")
        if name == "bug":
            raise ZeroDivisionError
        return NOTHING

    protector = Protector(work, told.__setitem__)
    for name in ("bad", "bug", "good"):
        protector.submit(name)
        assert protector.wait(30)
    assert isinstance(told["bad"], RestoreError)
    assert isinstance(told["bug"], HoldfastError)
    assert told["good"] is NOTHING
    assert protector.close(30)


def test_closing_calls_off_what_is_under_way() -> None:
    begun = threading.Event()

    def work(name: str, cancel: threading.Event) -> Protected:
        begun.set()
        assert cancel.wait(30)
        raise Cancelled("called off")

    protector = Protector(work, lambda name, outcome: None)
    protector.submit("any")
    assert begun.wait(30)
    assert protector.close(30)


@pytest.mark.parametrize("scheme", ["partner", "xor:3"])
def test_what_is_called_off_leaves_no_name_and_is_done_by_the_next_attempt(scheme: str) -> None:
    with Cluster(scheme, [[20_000, 20_000]] * 3) as cluster:
        cancel = threading.Event()
        cancel.set()
        before = cluster.near("node0").held(cluster.name)
        with pytest.raises(Cancelled):
            protect(cluster.name, "node0", cluster.seen_from("node0"), cluster.members, cancel=cancel)
        assert cluster.near("node0").held(cluster.name) == before
        assert cluster.protect("node0").written


@pytest.mark.parametrize("scheme", ["partner", "xor:3"])
def test_damaged_data_is_never_protected_as_if_it_were_good(scheme: str) -> None:
    with Cluster(scheme, [[20_000]] * 3) as cluster:
        partner = cluster.members.kept_for("node0") or "node1"
        damage(cluster.place(partner) / cluster.own_files(partner)[0], 9)
        before = cluster.near("node0").held(cluster.name)
        with pytest.raises(RestoreError, match="do not match their digest"):
            cluster.protect("node0")
        assert cluster.near("node0").held(cluster.name) == before


def test_single_protects_nothing_and_needs_nobody() -> None:
    with Cluster("single", [[100]] * 2) as cluster:
        cluster.servers["node1"].close()
        assert cluster.protect("node0") == Protected(cluster.name, (), (), 0, 0)


def test_files_belong_to_the_rank_in_their_names() -> None:
    assert [rank_of(f) for f in ("state-r00003.safetensors", "rank-r00012.json", "state.safetensors")] == [
        3,
        12,
        0,
    ]
    with Cluster("single", [[1], [2]]) as cluster:
        by_node = files_by_node(cluster.parsed, ["a", "a"])
        assert {node: len(files) for node, files in by_node.items()} == {"a": 2}
        with pytest.raises(SetupError, match="rank 1"):
            files_by_node(cluster.parsed, ["a"])


def test_every_file_has_one_node_that_looks_after_it_also_where_nodes_are_gone() -> None:
    with Cluster("single", [[1], [2], [3], [4]]) as cluster:
        were = [f"n{rank}" for rank in range(4)]
        everything = sorted(record.name for record in cluster.parsed.files)
        for now in (were, ["n3"], ["n1", "n2"], ["n0", "new", "n3"], ["x", "y", "z"]):
            dealt = [file for node in now for file in files_dealt_to(node, now, cluster.parsed, were)]
            assert sorted(dealt) == everything


def test_a_parity_record_comes_back_as_it_was_and_nothing_altered_does() -> None:
    with Cluster("xor:3", [[20_000]] * 3) as cluster:
        record = cluster.members.parity_record("node1")
        assert record is not None
        assert record.scheme == parse_scheme("xor:3")
        size = Layout(record).parity_bytes("node1")
        file = FileRecord(parity_name(record, "node1"), size, "parity", ALGORITHM, CHUNK_BYTES, ("0" * 32,))
        stored = StoredParity("f" * 64, "node1", record, file)
        data = stored.to_bytes()
        assert parse_stored_parity(data) == stored
        for at in range(0, len(data), 7):
            with pytest.raises(CorruptCheckpoint):
                parse_stored_parity(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
