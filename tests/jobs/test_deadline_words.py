"""Deadlines as users, supervisors and schedulers give them."""

from datetime import UTC, datetime, timedelta

import pytest

from holdfast.errors import SetupError
from holdfast.jobs.deadline import as_monotonic, find_deadline, parse_deadline, parse_time_limit
from holdfast.jobs.environment import WallDeadline, detect
from holdfast.jobs.plain import PlainJob
from holdfast.testing.fake_clock import FakeClock

NOW = datetime(2026, 11, 15, 22, 0).timestamp()


def at(text: object) -> datetime:
    return datetime.fromtimestamp(parse_deadline(text, NOW).at)  # type: ignore[arg-type]


def test_a_time_of_day_is_the_next_one() -> None:
    assert at("23:30") == datetime(2026, 11, 15, 23, 30)
    assert at("6:05") == datetime(2026, 11, 16, 6, 5)
    assert at("22:00:00") == datetime(2026, 11, 16, 22, 0)


def test_moments_and_lengths() -> None:
    assert at(90) == datetime(2026, 11, 15, 22, 1, 30)
    assert at("90 min") == datetime(2026, 11, 15, 23, 30)
    assert at("2026-11-16 08:00") == datetime(2026, 11, 16, 8, 0)
    assert at(datetime(2026, 11, 17)) == datetime(2026, 11, 17)
    assert at(f"@{NOW + 5}") == datetime.fromtimestamp(NOW + 5)
    zoned = datetime(2026, 11, 16, 8, 0, tzinfo=UTC) - timedelta(hours=1)
    assert parse_deadline(zoned, NOW).at == zoned.timestamp()


@pytest.mark.parametrize("text", ["", "soon", "25:00", "@never", "12 parsecs", -5, 0, True, None])
def test_what_is_no_deadline_is_refused_with_a_way_out(text: object) -> None:
    with pytest.raises(SetupError, match=r"deadline"):
        parse_deadline(text, NOW)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("12:00:00", 43200), ("30:00", 1800), ("1-12:00", 129600), ("1-00:00:30", 86430), ("12 h", 43200),
     ("45", 45)],
)  # fmt: skip
def test_time_limits_read_as_schedulers_write_them(text: str, seconds: float) -> None:
    assert parse_time_limit(text) == seconds


def test_a_time_limit_of_nothing_is_refused() -> None:
    with pytest.raises(SetupError):
        parse_time_limit("00:00:00")


def test_the_earliest_end_counts() -> None:
    clock = FakeClock(wall=NOW)
    job = PlainJob(deadline=WallDeadline(NOW + 100, "the scheduler"))
    assert find_deadline(None, {}, job, clock) == WallDeadline(NOW + 100, "the scheduler")
    assert find_deadline(50, {}, job, clock) == WallDeadline(NOW + 50, "deadline=")
    found = find_deadline(50, {"HOLDFAST_DEADLINE": f"@{NOW + 10}"}, job, clock)
    assert found == WallDeadline(NOW + 10, "HOLDFAST_DEADLINE")
    assert find_deadline(None, {}, PlainJob(), clock) is None


def test_a_clock_that_is_set_later_does_not_move_the_end() -> None:
    clock = FakeClock(monotonic=500, wall=NOW)
    end = as_monotonic(WallDeadline(NOW + 60, ""), clock)
    clock.skew_wall(-3600)
    assert end == 560


def test_outside_of_a_scheduler_a_job_is_plain() -> None:
    job = detect({"HOLDFAST_ATTEMPT": "3"})
    assert (job.kind, job.job_id, job.attempt, job.deadline, job.requeue_command) == (
        "plain", None, 3, None, None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("environ", "kind", "job_id"),
    [
        ({"PBS_JOBID": "12.server"}, "pbs", "12.server"),
        ({"LSB_JOBID": "77"}, "lsf", "77"),
        ({"SGE_TASK_ID": "undefined", "JOB_ID": "5"}, "sge", "5"),
    ],
)
def test_batch_systems_are_known_by_their_variables(environ: dict[str, str], kind: str, job_id: str) -> None:
    job = detect(environ)
    assert (job.kind, job.job_id) == (kind, job_id)
