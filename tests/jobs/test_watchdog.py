"""When silence means a hang. Time is given, never waited for."""

import math

from holdfast.jobs.heartbeat import Beat
from holdfast.jobs.watchdog import LEAST_LIMIT, LEAST_START_LIMIT, LONGEST_LOOK, HangLimits, Watchdog


class Pretended:
    """A supervisor's looks, one per second."""

    def __init__(self, limits: HangLimits | None = None) -> None:
        self.dog = Watchdog(limits)
        self.now = 0.0
        self.beat: Beat | None = None
        self.dog.attempt_started(self.now)

    def alive(self, phase: str = "training") -> None:
        count = 1 if self.beat is None else self.beat.count + 1
        self.beat = Beat(count, 1, "/run", count, phase)  # type: ignore[arg-type]

    def silent_for(self, seconds: float) -> str | None:
        """The first alarm within this time."""
        for _ in range(math.ceil(seconds)):
            self.now += 1
            alarm = self.dog.look(self.now, self.beat)
            if alarm is not None:
                return alarm
        return None

    def restart(self) -> None:
        self.beat = None
        self.dog.attempt_started(self.now)


def test_a_program_without_heartbeat_is_never_judged() -> None:
    assert Pretended().silent_for(100_000) is None


def test_silence_after_signs_of_life_is_a_hang() -> None:
    it = Pretended()
    it.alive()
    alarm = it.silent_for(LEAST_LIMIT + 10)
    assert alarm is not None
    assert "after step 1" in alarm


def test_signs_of_life_keep_it_running() -> None:
    it = Pretended(HangLimits(silence=5))
    for _ in range(100):
        it.alive()
        assert it.silent_for(5) is None
    assert it.silent_for(3) is not None


def test_the_limit_follows_the_longest_gap_seen() -> None:
    it = Pretended()
    it.alive()
    assert it.silent_for(400) is None  # a validation pass
    it.alive()
    assert it.silent_for(3900) is None
    assert it.silent_for(200) is not None


def test_what_was_learned_serves_the_next_attempt() -> None:
    it = Pretended()
    it.silent_for(300)  # importing, restoring
    it.alive()
    it.silent_for(1)
    it.restart()
    assert it.silent_for(LEAST_START_LIMIT) is None
    assert it.dog.limit == 10 * 301
    assert it.silent_for(3010) is not None


def test_the_users_limits_win() -> None:
    it = Pretended(HangLimits(silence=20, start=7))
    assert it.silent_for(7) is None
    assert "after its start" in str(it.silent_for(1))
    it.restart()
    it.alive()
    assert it.silent_for(21) is None
    assert it.silent_for(1) is not None


def test_time_in_which_the_supervisor_was_suspended_itself_is_no_evidence() -> None:
    it = Pretended(HangLimits(silence=60))
    it.alive()
    it.silent_for(10)
    it.now += 8 * 3600
    assert it.dog.look(it.now, it.beat) is None
    assert it.silent_for(60 - 10 - LONGEST_LOOK) is None


def test_a_run_that_is_finishing_may_wait_for_its_disk() -> None:
    it = Pretended(HangLimits(silence=10))
    it.alive("finishing")
    assert it.silent_for(1000) is None


def test_what_a_script_does_behind_a_finished_run_is_not_judged() -> None:
    it = Pretended(HangLimits(silence=10))
    it.alive("finished")
    assert it.silent_for(100_000) is None
