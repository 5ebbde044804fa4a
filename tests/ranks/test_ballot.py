"""A commit is unanimous, whatever dies, hangs or comes late."""

import threading
import time
from collections.abc import Callable

import pytest
from crew import crew, in_threads

from holdfast.clock import SystemClock
from holdfast.errors import OutcomeUnknown, SaveError
from holdfast.ranks.ballot import Ballot
from holdfast.ranks.team import Team

SHORT = 0.6


def whole_save(ballot: Ballot, save: str, *, fails: str | None = None) -> str:
    """A rank's part in a save, as the engine plays it."""
    rank = ballot.team.rank
    place = ballot.open(save, f"place of {save}".encode() if rank == 0 else None)
    report = f"{rank} wrote to {place.decode()}"
    ballot.vote(save, None if fails else report.encode(), fails)
    if rank:
        return ballot.outcome(save)
    try:
        reports = ballot.count(save)
    except SaveError as error:
        ballot.announce(save, None, str(error))
        raise
    assert reports == [f"{r} wrote to place of {save}".encode() for r in range(ballot.team.world)]
    ballot.announce(save, f"name of {save}", None)
    return f"name of {save}"


@pytest.fixture
def ballots(request: pytest.FixtureRequest):
    world, limit = getattr(request, "param", (4, 30.0))
    with crew(world) as teams:
        made = [Ballot(team, SystemClock(), limit=limit) for team in teams]
        yield made
        for ballot in made:
            ballot.close()


def everybody(ballots: list[Ballot], save: str, **odd: Callable[[], object]) -> list[object]:
    jobs = [lambda b=b: whole_save(b, save) for b in ballots]
    for rank, job in odd.items():
        jobs[int(rank.removeprefix("r"))] = job
    return in_threads(jobs)


def the_next_one_works(ballots: list[Ballot]) -> None:
    for ballot in ballots:
        ballot._limit = 30.0  # of failing, only, is a short limit a test
    assert everybody(ballots, "2/1") == ["name of 2/1"] * 4


short = pytest.mark.parametrize("ballots", [(4, SHORT)], indirect=True)


def keys_of(team: Team) -> int:
    return team.connect()._store.num_keys()


def test_all_reports_arrive_and_all_ranks_learn_the_name(ballots: list[Ballot]) -> None:
    for number in range(5):
        assert everybody(ballots, f"{number}/0") == [f"name of {number}/0"] * 4


def test_keys_of_old_saves_go_away(ballots: list[Ballot]) -> None:
    for number in range(4):
        everybody(ballots, f"{number}/0")
    before = keys_of(ballots[0].team)
    for number in range(4, 9):
        everybody(ballots, f"{number}/0")
    assert keys_of(ballots[0].team) == before


def test_large_reports_arrive_whole(ballots: list[Ballot]) -> None:
    large = bytes(range(256)) * (9 << 12)  # 9 MiB; the store itself takes 8
    for ballot in ballots:
        ballot.vote("1/0", large + bytes([ballot.team.rank]), None)
    assert ballots[0].count("1/0") == [large + bytes([rank]) for rank in range(4)]
    before = keys_of(ballots[0].team)
    for save in ("2/0", "3/0"):
        ballots[1].vote(save, b"small", None)
    assert keys_of(ballots[0].team) == before + 2 - 4  # two votes came, one in three parts went


def test_one_rank_that_cannot_write_fails_the_save_for_all_and_is_named(ballots: list[Ballot]) -> None:
    outcomes = everybody(ballots, "1/0", r2=lambda: whole_save(ballots[2], "1/0", fails="disk full"))
    for outcome in outcomes:
        assert isinstance(outcome, SaveError)
        assert "rank 2 could not write: disk full" in str(outcome)
    assert everybody(ballots, "2/1") == ["name of 2/1"] * 4


def test_rank_0_that_cannot_begin_tells_the_others_at_once(ballots: list[Ballot]) -> None:
    outcomes = everybody(ballots, "1/0", r0=lambda: ballots[0].announce("1/0", None, "no space"))
    for outcome in outcomes[1:]:
        assert isinstance(outcome, SaveError)
        assert "no space" in str(outcome)
    assert everybody(ballots, "2/1") == ["name of 2/1"] * 4


def nothing() -> None: ...


def opens_only(ballot: Ballot, save: str) -> None:
    ballot.open(save, b"place" if ballot.team.leads else None)


def opens_and_votes(ballot: Ballot, save: str) -> None:
    opens_only(ballot, save)
    ballot.vote(save, b"mine", None)


def opens_votes_and_counts(ballot: Ballot, save: str) -> None:
    opens_and_votes(ballot, save)
    ballot.count(save)


@short
@pytest.mark.parametrize("gone_after", [lambda b, s: nothing(), opens_only], ids=["nothing", "open"])
def test_a_rank_that_falls_silent_fails_the_save_for_all_and_the_next_one_works(
    ballots: list[Ballot], gone_after: Callable[[Ballot, str], None]
) -> None:
    outcomes = everybody(ballots, "1/0", r3=lambda: gone_after(ballots[3], "1/0"))
    assert "rank 3 did not answer" in str(outcomes[0])
    for outcome in outcomes[:3]:
        assert isinstance(outcome, SaveError)
        assert not isinstance(outcome, OutcomeUnknown)
    the_next_one_works(ballots)


@short
@pytest.mark.parametrize(
    ("gone_after", "known"),
    [
        (lambda b, s: nothing(), True),
        (opens_only, True),
        (opens_and_votes, True),
        (opens_votes_and_counts, False),
    ],
    ids=["nothing", "open", "vote", "count"],
)
def test_a_silent_rank_0_is_a_failure_and_unknown_only_once_it_had_decided(
    ballots: list[Ballot], gone_after: Callable[[Ballot, str], None], known: bool
) -> None:
    outcomes = everybody(ballots, "1/0", r0=lambda: gone_after(ballots[0], "1/0"))
    for outcome in outcomes[1:]:
        assert isinstance(outcome, SaveError)
        assert isinstance(outcome, OutcomeUnknown) != known, outcome
    the_next_one_works(ballots)


@pytest.mark.parametrize("ballots", [(2, SHORT)], indirect=True)
def test_what_a_rank_gave_up_can_no_longer_be_committed(ballots: list[Ballot]) -> None:
    opens_and_votes(ballots[0], "1/0")
    opens_and_votes(ballots[1], "1/0")
    with pytest.raises(SaveError, match="given up"):
        ballots[1].outcome("1/0")
    with pytest.raises(SaveError, match="rank 1 waited"):
        ballots[0].count("1/0")


@pytest.mark.parametrize("ballots", [(2, SHORT)], indirect=True)
def test_what_rank_0_decided_can_no_longer_be_given_up(ballots: list[Ballot]) -> None:
    ballots[0].open("1/0", b"place")
    for ballot in ballots:
        ballot.vote("1/0", b"mine", None)
    ballots[0].count("1/0")
    store = ballots[1].team.connect().scoped("ballot")

    def announce_late() -> None:
        # Not before the patience of rank 1 has ended. Later is fine: it then waits once more as long.
        time.sleep(SHORT + 0.1)
        ballots[0].announce("1/0", "late", None)

    late = threading.Thread(target=announce_late)
    late.start()
    assert ballots[1].outcome("1/0") == "late"
    late.join()
    assert store.get("1/0/decision", SHORT) == b"commit"


@pytest.mark.parametrize("ballots", [(2, SHORT)], indirect=True)
def test_late_votes_never_count_for_a_newer_save(ballots: list[Ballot]) -> None:
    ballots[0].open("1/0", b"place")
    ballots[0].vote("1/0", b"mine", None)
    with pytest.raises(SaveError, match="rank 1 did not answer"):
        ballots[0].count("1/0")
    ballots[0].announce("1/0", None, "rank 1 was silent")
    ballots[1].vote("1/0", b"old", None)
    ballots[0].open("2/1", b"place")
    ballots[0].vote("2/1", b"mine", None)
    with pytest.raises(SaveError, match="rank 1 did not answer"):
        ballots[0].count("2/1")


@pytest.mark.parametrize("ballots", [(2, SHORT)], indirect=True)
def test_a_rank_far_behind_still_finds_the_outcome_it_waits_for(ballots: list[Ballot]) -> None:
    everybody(ballots, "1/0")
    for number in (2, 3, 4):  # rank 1 is stopped somewhere before `outcome`
        save = f"{number}/0"
        ballots[0].open(save, b"place")
        ballots[0].vote(save, b"mine", None)
        if number == 2:
            ballots[1].vote(save, b"mine", None)
            ballots[0].count(save)
            ballots[0].announce(save, "committed", None)
        else:
            with pytest.raises(SaveError):
                ballots[0].count(save)
            ballots[0].announce(save, None, "silent")
    assert ballots[1].outcome("2/0") == "committed"
