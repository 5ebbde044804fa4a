"""One checkpoint of several ranks: everybody's part of one and the same state, or nothing."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from crew import crew, in_threads

from holdfast.checkpoints.find import committed
from holdfast.checkpoints.rank_claims import RankClaims
from holdfast.checkpoints.verify import verify
from holdfast.checkpoints.write import Committed
from holdfast.checkpoints.write_on_nodes import NodeSave, write_on_nodes
from holdfast.checkpoints.write_together import write_together
from holdfast.clock import SystemClock
from holdfast.errors import SaveError, StoreFull
from holdfast.ranks.ballot import Ballot
from holdfast.ranks.team import Team
from holdfast.stores.locations import node_store
from holdfast.stores.store import CheckpointStore
from holdfast.testing.memory_image import image_of
from holdfast.testing.store_contract import draft

IDENTITY = "00000000-0000-0000-0000-000000000000"
Save = Callable[[str, list[dict[str, Any]]], list[Any]]


@pytest.fixture
def save(tmp_path: Path) -> Iterator[Save]:
    """Two ranks save step 1, each sure of what it is told to agree on."""
    with crew(2) as teams, CheckpointStore(tmp_path) as first:
        epoch = first.claim()
        second = CheckpointStore(tmp_path)
        second.join(epoch)
        ballots = [Ballot(team, SystemClock(), limit=30.0) for team in teams]

        def part(name: str, team: Team, agrees_on: dict[str, Any]) -> Committed:
            store = first if team.leads else second
            image = image_of(1, name=f"r{team.rank:05d}-000.safetensors")
            mine = draft(1, writer_epoch=epoch, world=2)
            return write_together(
                team, ballots[team.rank], name, store, mine, [image], agrees_on, RankClaims()
            )

        def both(name: str, agrees_on: list[dict[str, Any]]) -> list[Any]:
            pairs = zip(teams, agrees_on, strict=True)
            return in_threads([partial(part, name, team, said) for team, said in pairs])

        yield both
        for ballot in ballots:
            ballot.close()
        second.release()


def test_ranks_that_saved_different_states_commit_nothing_and_are_told_which(
    save: Save, tmp_path: Path
) -> None:
    outcomes = save("1/1", [{"step": 1, "objects": "a"}, {"step": 1, "objects": "b"}])
    assert all(isinstance(outcome, SaveError) for outcome in outcomes)
    assert all("rank 1 saved with objects b and rank 0 with a" in str(outcome) for outcome in outcomes)
    assert committed(CheckpointStore(tmp_path)) == []


def test_ranks_that_agree_commit_everybodys_files(save: Save, tmp_path: Path) -> None:
    save("1/1", [{"step": 1}, {"step": 2}])
    assert [type(outcome) for outcome in save("1/2", [{"step": 1}, {"step": 1}])] == [Committed, Committed]
    store = CheckpointStore(tmp_path)
    [found] = committed(store)
    assert found.manifest is not None
    assert [file.name for file in found.manifest.files] == [
        "r00000-000.safetensors",
        "r00001-000.safetensors",
    ]
    assert verify(store, found).is_whole


class FullAtTheEnd(CheckpointStore):
    """Room for the files, none for the manifest."""

    def publish(self, name: str, manifest: bytes) -> None:
        raise StoreFull(f"no room to publish {name}")


def test_what_one_node_cannot_publish_no_node_keeps(tmp_path: Path) -> None:
    stores = [
        node_store(tmp_path / "n0", uuid=IDENTITY),
        FullAtTheEnd(tmp_path / "n1", uuid=IDENTITY, one_writer=False),
    ]

    def part(team: Team, ballot: Ballot) -> Any:
        mine = NodeSave(stores[team.rank], True, {}, lambda name, said: {})
        image = image_of(1, name=f"r{team.rank:05d}-000.safetensors")
        return write_on_nodes(
            team, ballot, "1/1", mine, draft(1, world=2), [image], {"step": 1}, RankClaims()
        )

    with crew(2) as teams:
        ballots = [Ballot(team, SystemClock(), limit=30.0) for team in teams]
        outcomes = in_threads([partial(part, *pair) for pair in zip(teams, ballots, strict=True)])
        for ballot in ballots:
            ballot.close()
    assert [type(outcome) for outcome in outcomes] == [SaveError, StoreFull]
    assert [store.names() + store.leftovers() for store in stores] == [[], []]
