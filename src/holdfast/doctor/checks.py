"""The checks of a run and the machine under it: each looks at the facts and says what is wrong. Pure.

A check that cries wolf is worse than none: what cannot be known is passed over in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime

from holdfast.doctor.facts import Facts
from holdfast.doctor.finding import Finding, Said, problem, warning
from holdfast.events import AttemptEnded, Progress, RunStarted, SaveCommitted, SaveFailed, SnapshotTaken
from holdfast.units import format_bytes, format_seconds

GIB = 1 << 30
# A new one must fit beside those that are kept, and the next one should as well.
ROOM_FOR = 2
UNKNOWN_ROOM = 64 << 20
RARE_SECONDS = 2 * 3600.0
DEAR_SHARE = 0.10
CLOCK_SECONDS = 300.0
# DataLoader workers and the memory tier live in /dev/shm; containers often give it 64 MB.
SMALL_SHARED_MEMORY = GIB // 2
Check = Callable[[Facts], Iterator[Said]]


def location_in_memory(facts: Facts) -> Iterator[Said]:
    if facts.mount is not None and facts.mount.is_in_memory:
        yield problem(
            f"{facts.folder} is in memory ({facts.mount.kind}): a reboot takes every checkpoint with it",
            "use a folder on a disk; holdfast uses memory as a first tier by itself",
        )


def location_in_home(facts: Facts) -> Iterator[Said]:
    at_home = facts.folder.absolute().is_relative_to(facts.home)
    shared = facts.mount is not None and facts.mount.is_shared
    if at_home and (facts.scratch or shared or facts.in_cluster) and str(facts.home) != "/":
        where = facts.scratch or "your site's scratch or project file system"
        yield warning(
            f"{facts.folder} is in the home folder, which on clusters is small, slow and has a quota",
            f"put runs below {where}",
        )


def location_on_node(facts: Facts) -> Iterator[Said]:
    mount = facts.mount
    if facts.job is not None and mount is not None and not mount.is_shared and not mount.is_in_memory:
        yield problem(
            f"{facts.folder} is on a disk of this node ({mount.kind}): a job that is requeued to another "
            "node starts from nothing",
            "use a shared file system for the run's folder, and the local disk as a tier before it",
        )


def nfs_options(facts: Facts) -> Iterator[Said]:
    mount = facts.mount
    if mount is None or not mount.kind.startswith("nfs"):
        return
    dangers = {
        "soft": "reports an error after a while instead of waiting, which loses writes",
        "softerr": "reports an error after a while instead of waiting, which loses writes",
        "nolock": "cannot keep two writers apart",
        "local_lock=all": "cannot keep two writers on two nodes apart",
        "local_lock=flock": "cannot keep two writers on two nodes apart",
        "nocto": "may show an old listing after a restart on another node",
    }
    for option in sorted(mount.options & set(dangers)):
        yield problem(
            f"{mount.point} is mounted with {option}, which {dangers[option]}",
            f"ask for a mount without {option}, or use another file system",
        )


def permissions(facts: Facts) -> Iterator[Said]:
    if not facts.writable:
        yield problem(
            f"{facts.folder} cannot be written to by this user",
            "chown or chmod it, or choose another folder",
        )
    if facts.others_may_write:
        yield warning(
            f"everybody may write into {facts.folder}, and delete its checkpoints",
            f"chmod o-w {facts.folder}",
        )


def free_space(facts: Facts) -> Iterator[Said]:
    # Before the first checkpoint nobody knows how large they are.
    need = ROOM_FOR * facts.newest_bytes or UNKNOWN_ROOM
    if facts.free_bytes < need:
        yield problem(
            f"{format_bytes(facts.free_bytes)} are free where {facts.folder} lies, and two more checkpoints "
            f"take {format_bytes(need)}",
            "free space, or keep fewer checkpoints (holdfast prune)",
        )
    if facts.free_files is not None and facts.free_files < 1000:
        yield problem(
            f"only {facts.free_files} more files fit where {facts.folder} lies",
            "delete small files there, or use another file system",
        )


def shared_memory(facts: Facts) -> Iterator[Said]:
    size = facts.shared_memory_bytes
    need = max(SMALL_SHARED_MEMORY, round(1.2 * facts.newest_bytes))
    if size is not None and size < need:
        yield warning(
            f"/dev/shm has {format_bytes(size)}: too small for the memory tier ({format_bytes(need)}), and "
            "data loader workers may die in it",
            "start the container with --shm-size=8g or --ipc=host",
        )


def not_there(facts: Facts) -> Iterator[Said]:
    if not facts.exists:
        yield warning(
            f"{facts.folder} does not exist: only the place was looked at, no run",
            "correct the path, unless the run is yet to begin there",
        )


def readable(facts: Facts) -> Iterator[Said]:
    if facts.problem is not None:
        yield problem(f"the run cannot be read: {facts.problem}", "check the folder")


def damaged(facts: Facts) -> Iterator[Said]:
    for verdict in facts.verdicts:
        if not verdict.is_whole:
            yield problem(
                f"checkpoint {verdict.name} is damaged: {verdict.problems[0]}",
                "an older one is used instead; copy it back from another tier, and check the disk",
            )


def single_location(facts: Facts) -> Iterator[Said]:
    mount = facts.mount
    on_one_disk = mount is not None and not mount.is_shared and not mount.is_in_memory
    # Inside a job there is worse to say about it.
    if facts.checkpoints and on_one_disk and not facts.elsewhere and facts.job is None:
        yield warning(
            f"every checkpoint of {facts.folder} is on one disk of this machine, and goes with it",
            'add a second place: tiers=["run", "/shared/run"] or "s3://bucket/run every 10"',
        )


def unverified(facts: Facts) -> Iterator[Said]:
    if facts.verdicts and not facts.verdicts[0].is_deep and facts.verdicts[0].is_whole:
        yield warning(
            "the bytes of the newest checkpoint were not read back, only its size",
            f"holdfast verify --deep {facts.folder}",
        )


def keep_count(facts: Facts) -> Iterator[Said]:
    saves = sum(isinstance(event, SaveCommitted) for event in facts.events)
    whole = sum(verdict.is_whole for verdict in facts.verdicts)
    if saves >= 2 and whole < 2:
        yield problem(
            f"{saves} checkpoints were saved and {whole} whole one{'s are' if whole != 1 else ' is'} left: "
            "if it proves damaged, the run is lost",
            "keep at least two; was something else deleting files there?",
        )


def frequency(facts: Facts) -> Iterator[Said]:
    gap = _longest_gap(facts)
    if gap > RARE_SECONDS:
        yield warning(
            f"up to {format_seconds(gap)} passed between two checkpoints",
            'leave the choice to policy="auto", or promise a limit with max_loss="30 min"',
        )
    share = _stall_share(facts)
    if share > DEAR_SHARE:
        yield warning(
            f"saving stops training for {100 * share:.0f} % of the time",
            'save less often: leave every= out, and budget="3%" is kept',
        )


def failing_saves(facts: Facts) -> Iterator[Said]:
    failed: list[SaveFailed] = []
    for event in facts.events:
        if isinstance(event, SaveCommitted):
            failed = []
        elif isinstance(event, SaveFailed):
            failed.append(event)
    if failed:
        yield problem(
            f"the last {len(failed)} save{'s' if len(failed) > 1 else ''} failed: {failed[-1].error}",
            "see to the cause before a failure costs everything since the last one that worked",
        )


def no_progress(facts: Facts) -> Iterator[Said]:
    failures = 0
    for event in facts.events:
        if isinstance(event, SaveCommitted):
            failures = 0
        elif isinstance(event, AttemptEnded) and not event.planned:
            failures += 1
    if failures >= 2:
        yield problem(
            f"{failures} attempts in a row failed before they saved anything",
            "read the log of the last attempt; restarting will not help",
        )


def time_limit(facts: Facts) -> Iterator[Said]:
    if facts.job is not None and facts.deadline is None:
        yield problem(
            f"job {facts.job.label} may have a time limit that holdfast cannot see: no SLURM_JOB_END_TIME, "
            "and scontrol gives no end",
            "make scontrol reachable (bind it into the container), or give holdfast run --time-limit",
        )


def clock(facts: Facts) -> Iterator[Said]:
    newest = next((one.manifest for one in facts.checkpoints if one.manifest), None)
    if newest is None:
        return
    try:
        ahead = datetime.fromisoformat(newest.created).timestamp() - facts.now
    except (ValueError, OverflowError):
        return
    if ahead > CLOCK_SECONDS:
        yield warning(
            f"the newest checkpoint was made {format_seconds(ahead)} in the future: clocks differ",
            "let every node keep time (chrony, ntpd); deadlines depend on it",
        )


def version_drift(facts: Facts) -> Iterator[Said]:
    newest = next((one.manifest for one in facts.checkpoints if one.manifest), None)
    saved = newest.environment.get("versions") if newest else None
    if not isinstance(saved, dict):
        return
    for package, here in facts.versions.items():
        then = saved.get(package)
        # A login node without torch is no drift.
        known = isinstance(then, str) and then != "unknown" and here != "not installed"
        if known and _release(str(then)) != _release(here):
            yield warning(
                f"the newest checkpoint was saved with {package} {then}; here is {here}",
                f"resuming works, but bit for bit only with {package} {then}",
            )


def leftovers(facts: Facts) -> Iterator[Said]:
    if facts.unfinished > 2:
        yield warning(
            f"{facts.unfinished} unfinished checkpoints take up space",
            f"holdfast prune {facts.folder} --yes",
        )


def memory_left(facts: Facts) -> Iterator[Said]:
    for left in facts.stale_memory:
        of = f"the run in {left.run}" if left.run else "a run"
        yield warning(
            f"{of} has not written for {format_seconds(left.age_seconds)}, lives no more and holds "
            f"{format_bytes(left.bytes)} of memory",
            f"take it up on this machine, or, if nothing there is needed any more: rm -r {left.path}",
        )


RUN_CHECKS: tuple[Check, ...] = (
    not_there, location_in_memory, location_in_home, location_on_node, single_location, nfs_options,
    permissions,
    free_space, shared_memory, readable, damaged, unverified, keep_count, frequency, failing_saves,
    no_progress, time_limit, clock, version_drift, leftovers,
    memory_left,
)  # fmt: skip


def examine(facts: Facts) -> list[Finding]:
    """Every finding, problems first, under the name of its check."""
    found = [
        Finding(check.__name__.replace("_", "-"), *said) for check in RUN_CHECKS for said in check(facts)
    ]
    return sorted(found, key=lambda finding: finding.severity != "problem")


def _release(version: str) -> str:
    """ "2.13.0+cpu" -> "2.13": patches keep results, minor versions may not."""
    return ".".join(version.partition("+")[0].split(".")[:2])


def _longest_gap(facts: Facts) -> float:
    """Training time without a commit, within one process: what a failure could have cost."""
    longest, last = 0.0, None
    for event in facts.events:
        if isinstance(event, (RunStarted, SaveCommitted)):
            if isinstance(event, SaveCommitted) and last is not None:
                longest = max(longest, event.time - last)
            last = event.time
        elif isinstance(event, Progress) and last is not None:
            longest = max(longest, event.time - last)
    return longest


def _stall_share(facts: Facts) -> float:
    stalls = [event for event in facts.events if isinstance(event, SnapshotTaken)]
    if len(stalls) < 5:
        return 0.0
    span = stalls[-1].time - stalls[0].time
    return sum(event.stall_seconds for event in stalls[1:]) / span if span > 0 else 0.0
