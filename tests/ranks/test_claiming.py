"""One folder for all ranks: rank 0 claims it, the others join, and what is in the way is heard by all."""

import shutil
from pathlib import Path

import pytest
from crew import crew, in_threads

from holdfast.clock import SystemClock
from holdfast.engine.together import claim_known
from holdfast.errors import SetupError
from holdfast.ranks.team import Team
from holdfast.stores.store import CheckpointStore
from holdfast.tiers.words import Tier

LIMIT = 30.0


def claim(team: Team, folder: Path, tier: Path) -> CheckpointStore:
    return claim_known(str(folder), [Tier(str(tier))], SystemClock(), team, LIMIT)


def test_what_only_rank_0_sees_wrong_with_a_tier_is_every_ranks_error(tmp_path: Path) -> None:
    run = tmp_path / "run"

    def refused(team: Team) -> str:
        with pytest.raises(SetupError) as error:
            claim(team, run, run)
        return error.value.message

    with crew(3) as teams:
        said = in_threads([lambda t=t: refused(t) for t in teams])  # type: ignore[misc]
    assert all("is the run's own folder" in message for message in said)


def test_a_lost_folder_is_the_same_run_on_every_rank(tmp_path: Path) -> None:
    run, outer = tmp_path / "run", tmp_path / "outer"
    with CheckpointStore(run) as before:
        before.claim()
        with CheckpointStore(outer, uuid=before.uuid) as far:
            far.claim(at_least=7)
        uuid = before.uuid
    shutil.rmtree(run)
    with crew(2) as teams:
        stores = in_threads([lambda t=t: claim(t, run, outer) for t in teams])  # type: ignore[misc]
        assert {store.uuid for store in stores} == {uuid}
        assert len({store.writer_epoch for store in stores}) == 1
        for store in stores:
            store.release()
