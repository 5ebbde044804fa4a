"""Every rank loads the same checkpoint: proof on one of them decides for all, doubt on one stops all."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from crew import crew, in_threads

from holdfast.checkpoints.find import Found
from holdfast.engine.load_together import load_together
from holdfast.errors import CorruptCheckpoint, HoldfastError, NewerFormat, StoreUnavailable
from holdfast.ranks.team import Team
from holdfast.stores.patience import Patience
from holdfast.stores.store import CheckpointStore
from holdfast.testing.store_contract import save
from holdfast.tiers.named_tier import HoldersAway

Outcome = int | None | BaseException
QUICK = Patience(attempts=4, first_pause=0.0)


@pytest.fixture
def load(tmp_path: Path) -> Callable[[dict[int, list[HoldfastError]]], list[Outcome]]:
    """Two ranks load; each stumbles over step 2 with the errors it is given, in this order."""
    with CheckpointStore(tmp_path) as store:
        epoch = store.claim()
        save(store, 1, writer_epoch=epoch)
        save(store, 2, writer_epoch=epoch)

    def both(errors: dict[int, list[HoldfastError]]) -> list[Outcome]:
        def attempt(rank: int, found: Found) -> int:
            if found.step == 2 and errors.get(rank):
                raise errors[rank].pop(0)
            return found.step

        def one(team: Team) -> int | None:
            read = partial(attempt, team.rank)
            reject: Callable[[Found, str], None] = lambda found, why: None  # noqa: E731
            return load_together(CheckpointStore(tmp_path), team, 30.0, read, reject, patience=QUICK)

        with crew(2) as teams:
            return in_threads([partial(one, team) for team in teams])

    return both


Load = Callable[[dict[int, list[HoldfastError]]], list[Outcome]]
away = StoreUnavailable("Input/output error")


def test_a_read_error_of_one_rank_that_goes_away_costs_no_checkpoint(load: Load) -> None:
    assert load({1: [away, away]}) == [2, 2]


def test_a_rank_that_cannot_tell_stops_all_of_them(load: Load) -> None:
    outcomes = load({1: [away] * 100})
    assert all(isinstance(one, StoreUnavailable) and "rank 1: Input" in str(one) for one in outcomes)


def test_what_one_rank_proves_damaged_is_passed_over_by_all_though_another_cannot_tell(load: Load) -> None:
    assert load({0: [away] * 100, 1: [CorruptCheckpoint("flipped")] * 100}) == [1, 1]


def test_what_was_lost_with_a_node_is_passed_over(load: Load) -> None:
    assert load({1: [HoldersAway("node 3 does not answer")] * 100}) == [1, 1]


def test_a_newer_format_on_one_rank_stops_all_of_them(load: Load) -> None:
    outcomes = load({0: [NewerFormat("a newer holdfast wrote it")] * 100})
    assert all(isinstance(one, HoldfastError) and "newer holdfast" in str(one) for one in outcomes)
