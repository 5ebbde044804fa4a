"""Where the kernel counts the processes that it killed for lack of memory."""

from pathlib import Path

from holdfast.jobs.supervisor_memory import OomKills, oom_kills


def pretend(tmp_path: Path, group: str, counter: str, text: str, machine: int = 0) -> OomKills:
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    (proc / "self").mkdir(parents=True, exist_ok=True)
    (proc / "self" / "cgroup").write_text(group)
    (proc / "vmstat").write_text(f"nr_free 5\noom_kill {machine}\n")
    path = groups / counter
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return oom_kills(proc, groups)


def test_version_2_groups(tmp_path: Path) -> None:
    seen = pretend(tmp_path, "0::/job/7\n", "job/7/memory.events", "low 0\noom 3\noom_kill 2\n", machine=9)
    assert seen == OomKills(here=2, anywhere=9)


def test_version_1_groups(tmp_path: Path) -> None:
    group = "4:cpu,cpuacct:/x\n3:memory:/slurm/job_7\n"
    counter = "memory/slurm/job_7/memory.oom_control"
    assert pretend(tmp_path, group, counter, "under_oom 0\noom_kill 4\n").here == 4


def test_the_root_group_is_not_the_jobs_own(tmp_path: Path) -> None:
    assert pretend(tmp_path, "0::/\n", "memory.events", "oom_kill 2\n").here is None


def test_a_machine_without_counters_gives_no_evidence(tmp_path: Path) -> None:
    nothing = oom_kills(tmp_path / "no", tmp_path / "no")
    assert nothing == OomKills(None, None)
    assert nothing.since(nothing) == (0, 0)
    assert OomKills(5, 5).since(nothing) == (0, 0)


def test_what_was_counted_before_the_attempt_is_not_its_own() -> None:
    assert OomKills(3, 10).since(OomKills(2, 10)) == (1, 0)


def test_the_real_counters_can_be_read() -> None:
    now = oom_kills()
    assert now.since(now) == (0, 0)
