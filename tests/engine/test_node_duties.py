"""What the nodes of a run keep, protect and let go: the decisions, without the processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.engine.node_protection import scheme_for
from holdfast.engine.node_retention import tidy
from holdfast.engine.node_tiers import NodeRhythm
from holdfast.errors import CorruptCheckpoint, SetupError
from holdfast.events import CheckpointProtected, Event, ProtectFailed
from holdfast.format.manifest import Manifest
from holdfast.redundancy.scheme import parse_scheme
from holdfast.stores.locations import node_store
from holdfast.stores.store import CheckpointStore
from holdfast.testing.fake_clock import FakeClock
from holdfast.testing.memory_image import image_of
from holdfast.testing.store_contract import draft, save
from holdfast.tiers.node_ranks import nodes_of_ranks, with_nodes
from holdfast.tiers.words import Tier

UUID = "00000000-0000-4000-8000-000000000001"


def names(steps: range, store: CheckpointStore) -> dict[int, str]:
    return {step: str(save(store, step).name) for step in steps}


def test_the_newest_stay_and_so_does_what_somebody_needs(tmp_path: Path) -> None:
    store = node_store(tmp_path, uuid=UUID)
    by_step = names(range(1, 7), store)
    gone = tidy([store], set(by_step.values()), 2, {by_step[2]})
    assert sorted(gone) == [by_step[step] for step in (1, 3, 4)]
    assert sorted(store.names()) == [by_step[step] for step in (2, 5, 6)]


def test_what_only_this_node_settled_never_pushes_a_good_one_out(tmp_path: Path) -> None:
    store = node_store(tmp_path, uuid=UUID)
    by_step = names(range(1, 6), store)
    whole = {by_step[1], by_step[2]}
    assert tidy([store], whole, 2, ()) == [], "3, 4 and 5 are newer than anything all nodes have"
    assert tidy([store], {by_step[5]}, 2, ()) == [], "one is not enough to let others go"
    assert sorted(tidy([store], {*whole, by_step[5]}, 2, ())) == [by_step[step] for step in (1, 3, 4)]


def test_what_a_failed_save_left_goes_with_a_later_commit(tmp_path: Path) -> None:
    store = node_store(tmp_path, uuid=UUID)
    half = str(draft(3).name)
    by_step = names(range(4, 6), store)
    store.write(half, image_of(3))
    newer = str(draft(9).name)
    store.write(newer, image_of(9))
    tidy([store], set(by_step.values()), 2, ())
    assert store.leftovers() == [newer], "what is being written now is not touched"


class Heard:
    def __init__(self, scheme: str) -> None:
        self.events: list[Event] = []
        self.rhythm = NodeRhythm(parse_scheme(scheme), FakeClock())
        self.rhythm.emit = self.events.append

    @property
    def spare(self) -> list[str]:
        return self.rhythm.spare

    def wants_next(self) -> bool:
        return self.rhythm.wants_next

    def hear(self, at: str | None = None, **said: tuple[list[str], list[list[str]]]) -> None:
        each: list[dict[str, Any]] = [
            {"node": node, "protected": done, "trouble": trouble, "at": None if at in done else at}
            for node, (done, trouble) in said.items()
        ]
        self.rhythm.hear([*each, {}])


def test_the_next_is_protected_only_when_every_node_is_done() -> None:
    heard = Heard("partner")
    assert heard.wants_next()
    heard.rhythm.pending = "c1"
    heard.hear(at="c1", a=(["c1"], []), b=([], []))
    assert not heard.wants_next()
    assert heard.spare == ["c1"]
    heard.hear(a=(["c1"], []), b=(["c1"], []))
    assert heard.wants_next()
    heard.rhythm.pending = "c4"
    assert heard.spare == ["c1", "c4"], "the old one stays until the new one is safe"
    assert [e.name for e in heard.events if isinstance(e, CheckpointProtected)] == ["c1"]


def test_a_node_that_fails_is_told_of_and_the_next_one_is_tried() -> None:
    heard = Heard("xor:3")
    heard.rhythm.pending = "c2"
    heard.hear(a=(["c2"], []), b=([], [["c2", "the disk is full"]]))
    assert heard.wants_next()
    [event] = heard.events
    assert isinstance(event, ProtectFailed)
    assert (event.node, event.error) == ("b", "the disk is full")


def test_a_node_that_never_began_does_not_keep_the_others_waiting() -> None:
    heard = Heard("partner")
    heard.rhythm.pending = "c3"
    heard.hear(a=(["c3"], []), b=([], []))
    assert heard.wants_next()


def test_a_single_copy_is_never_protected() -> None:
    assert not Heard("single").wants_next()


def test_too_few_nodes_are_an_error_at_first_and_not_after_a_loss() -> None:
    tier = Tier("/local", protect="xor:4")
    with pytest.raises(SetupError, match="4 nodes"):
        scheme_for(tier, 3, is_restart=False)
    assert str(scheme_for(tier, 3, is_restart=True)) == "partner"
    assert str(scheme_for(tier, 1, is_restart=True)) == "single"
    assert str(scheme_for(tier, 4, is_restart=False)) == "xor:4"


def manifest(world: int, environment: dict[str, Any]) -> Manifest:
    return Manifest(
        store=UUID, writer_epoch=1, step=5, nonce="00000005", parent=None, created="", reason="test",
        files=(), world=world, environment=environment,
    )  # fmt: skip


def test_a_manifest_says_which_ranks_were_on_which_node() -> None:
    of_rank = ("a", "a", "b", "a")
    said = with_nodes({"python": "3"}, of_rank)
    assert nodes_of_ranks(manifest(4, said)) == of_rank
    assert nodes_of_ranks(manifest(4, {})) is None
    for wrong in (
        said | {"nodes": [["a", 3]]},
        {"nodes": [["a", 10**9]]},
        {"nodes": "ab"},
        {"nodes": [[1, 4]]},
    ):
        with pytest.raises(CorruptCheckpoint):
            nodes_of_ranks(manifest(4, wrong))
