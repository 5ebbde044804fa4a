"""Ranks find each other, whatever was left in the store before, and exchange what they must."""

import os
import socket
import threading
from dataclasses import replace

import pytest
from crew import crew, in_threads, join_all, pool

from holdfast.clock import SystemClock
from holdfast.errors import SetupError, StoreUnavailable
from holdfast.ranks.join import Place, join, node_names
from holdfast.ranks.launcher import Launched, launched
from holdfast.ranks.torch_team import place_of, team_from_torch

SHORT = 0.3


def test_a_team_knows_who_is_where() -> None:
    with crew(4) as teams:
        for rank, team in enumerate(teams):
            assert (team.rank, team.world, team.leads) == (rank, 4, rank == 0)
            assert team.nodes == ("host0", "host0", "host1", "host1")
            assert (team.node, team.local_rank) == (f"host{rank // 2}", rank % 2)


def test_launchers_on_one_host_are_told_apart_and_a_given_name_wins() -> None:
    places = [Place("a", "0"), Place("a", "1"), Place("b", "2"), Place("b", "2", node="mine")]
    assert node_names(places) == ("a-0", "a-1", "b", "mine")


def test_the_place_is_read_from_the_environment() -> None:
    host = socket.gethostname()

    def place(environ: dict[str, str]) -> Place:
        found = place_of(environ)
        assert found.process == os.getpid()
        assert found.machine
        return replace(found, machine=None, process=None)

    assert place({}) == Place(host)
    assert place({"GROUP_RANK": "3", "LOCAL_RANK": "1"}) == Place(host, "3", None, 1)
    assert place({"HOLDFAST_NODE": "n7", "SLURM_LOCALID": "2"}) == Place(host, None, "n7", 2)


def test_everybody_gets_what_rank_0_shares_again_and_again() -> None:
    with crew(3) as teams:
        for number in range(3):
            word = f"word {number}".encode()
            jobs = [lambda t=t, w=word: t.share("plan", w if t.leads else b"mine", 10) for t in teams]
            assert in_threads(jobs) == [word] * 3


def test_a_fast_rank_0_loses_no_share_of_a_slow_rank() -> None:
    with crew(2) as (leader, other):
        for number in range(5):
            leader.share("plan", bytes([number]), 10)
        assert [other.share("plan", None, 10) for _ in range(5)] == [bytes([number]) for number in range(5)]


def test_gather_is_by_rank_and_leaves_no_keys_behind() -> None:
    with crew(3) as teams:
        counts = []
        for number in range(6):
            jobs = [lambda t=t, n=number: t.gather("facts", bytes([t.rank, n]), 10) for t in teams]
            assert in_threads(jobs) == [[bytes([rank, number]) for rank in range(3)]] * 3
            in_threads([lambda t=t: t.share("x", b"y", 10) for t in teams])
            counts.append(teams[0].connect()._store.num_keys())  # type: ignore[attr-defined]
        assert counts[2:] == [counts[2]] * 4


def test_rank_0_stays_until_every_other_rank_has_parted() -> None:
    with crew(3) as (leader, *others):
        staying = threading.Thread(target=leader.part, args=(10,))
        staying.start()
        others[0].part()
        # It has looked at least once in between, and one is still to come.
        leader.connect().get(f"parted/{others[0].rank}", 10)
        assert staying.is_alive()
        others[1].part()
        staying.join(10)
        assert not staying.is_alive()


def test_rank_0_does_not_stay_for_ever_for_a_rank_that_died() -> None:
    with crew(2) as (leader, _):
        leader.part(SHORT)


def test_waits_end_and_name_who_is_missing() -> None:
    with crew(3) as teams:
        with pytest.raises(StoreUnavailable, match="rank 0 did not share 'plan'"):
            teams[1].share("plan", None, SHORT)
        with pytest.raises(StoreUnavailable, match="ranks 0, 2 did not give 'facts'"):
            teams[1].gather("facts", b"", SHORT)


def test_a_second_run_never_meets_the_keys_of_the_first() -> None:
    with pool().scope() as store:
        first = join_all(store, 3)
        first[0].share("plan", b"old", 10)
        second = join_all(store, 3)
        with pytest.raises(StoreUnavailable, match="rank 0 did not share"):
            second[1].share("plan", None, SHORT)
        second[0].share("plan", b"new", 10)
        assert second[2].share("plan", None, 10) == b"new"
        for team in first + second:
            team.close()


def test_a_rank_that_died_while_joining_does_not_count_and_its_next_life_does() -> None:
    with pool().scope() as store:
        store.set("hello/1", b"a token whose process is gone")
        teams = join_all(store, 3)
        jobs = [lambda t=t: t.gather("who", str(t.rank).encode(), 10) for t in teams]
        assert in_threads(jobs) == [[b"0", b"1", b"2"]] * 3
        for team in teams:
            team.close()


@pytest.mark.parametrize(
    ("rank", "message"), [(0, "ranks 1, 2 did not start this Run"), (1, "rank 0 did not start this Run")]
)
def test_joining_alone_ends_with_an_error_that_says_who_is_missing(rank: int, message: str) -> None:
    with pool().scope() as store, pytest.raises(StoreUnavailable, match=message):
        join(store, SystemClock(), rank=rank, world=3, place=Place("a"), limit=SHORT)


def test_one_process_has_no_team(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert team_from_torch("run", limit=SHORT) is None
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert team_from_torch("run", limit=SHORT) is None


def test_many_processes_without_a_process_group_are_told_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for world, rank in (
        ("WORLD_SIZE", "RANK"),
        ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
        ("PMI_SIZE", "PMI_RANK"),
        ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
    ):
        with monkeypatch.context() as launcher:
            launcher.delenv("WORLD_SIZE", raising=False)
            launcher.setenv(world, "4")
            launcher.setenv(rank, "2")
            with pytest.raises(SetupError, match=f"one of 4 processes .{world}.*init_process_group"):
                team_from_torch("run", limit=SHORT)
            launcher.setenv("HOLDFAST_ALONE", "1")
            assert team_from_torch("run", limit=SHORT) is None


def test_the_innermost_launcher_counts_and_a_batch_script_is_none() -> None:
    assert launched({}) is None
    assert launched({"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}) is None
    inside = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "WORLD_SIZE": "16", "RANK": "9"}
    assert launched(inside) == Launched(16, 9, "WORLD_SIZE")
    assert launched({"WORLD_SIZE": "many"}) is None
