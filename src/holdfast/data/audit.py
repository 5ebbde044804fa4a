"""Proves from a run's logs that training had every sample exactly once per epoch, over all its attempts.

Reads what feeds wrote when they handed batches out, and believes nothing else. Never imports torch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from holdfast.data.audit_log import FOLDER, AttemptLog, AuditRecord, read_log
from holdfast.errors import StoreNotFound

Pass = tuple[str, int, int]  # feed, epoch, passes


@dataclass(frozen=True)
class PassReport:
    """One pass over one feed, as the surviving history has it.

    `exactly_once` is None where the user's own sampler decides which indices come; then only batches are
    checked: none lost, none handed out twice.
    """

    feed: str
    epoch: int
    passes: int
    finished: bool
    batches: int
    samples: int
    padding: int
    left_out: int
    exactly_once: bool | None


@dataclass(frozen=True)
class AuditReport:
    """`violations` are sentences, the earliest first; `unknown` says where nobody can tell. None of either
    means that the promise held."""

    path: Path
    attempts: int
    passes: list[PassReport]
    undone: int
    violations: list[str]
    unknown: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.violations and not self.unknown


@dataclass(frozen=True)
class _Entry:
    """A record and where it was found."""

    record: AuditRecord
    log: AttemptLog

    def __str__(self) -> str:
        rank = f", rank {self.log.rank}" if self.log.world > 1 else ""
        return f"step {self.record.step} of attempt {self.log.attempt}{rank}"


def audit_run(path: str | Path) -> AuditReport:
    """Check the data audit of the run in `path`. StoreNotFound if the run kept none."""
    folder = Path(path) / FOLDER
    files = sorted(folder.glob("*.log"))
    if not files:
        raise StoreNotFound(
            f"{folder} holds no data audit",
            hint="start the run with audit_data=True; it is written from then on",
        )
    logs = [log for file in files if (log := read_log(file)) is not None]
    violations: list[str] = []
    passes: list[PassReport] = []
    undone = 0
    for feed in sorted({record.feed for log in logs for record in log.records}):
        survivors, lost = _survivors(feed, logs, violations)
        undone += lost
        _check_batches(feed, survivors, violations)
        by_pass: dict[Pass, list[_Entry]] = defaultdict(list)
        for entry in survivors:
            by_pass[feed, entry.record.epoch, entry.record.passes].append(entry)
        passes += [_check_pass(key, by_pass[key], violations) for key in sorted(by_pass)]
    attempts = len({log.attempt for log in logs})
    return AuditReport(Path(path), attempts, passes, undone, violations, list(_unknown(logs)))


def _unknown(logs: Sequence[AttemptLog]) -> Iterator[str]:
    for log in logs:
        for feed in sorted({record.feed for record in log.records if record.unsure}):
            yield (
                f"{feed}: the loop had fetched more batches than it had made steps when the checkpoint of "
                f"step {log.start_step} was made, too early to tell fetched ahead from accumulated: "
                f"attempt {log.attempt} may have passed over one"
            )


def _survivors(feed: str, logs: Sequence[AttemptLog], violations: list[str]) -> tuple[list[_Entry], int]:
    """What the model that exists today has been trained on: an attempt that was restored at batch N has
    undone every batch from N on that attempts before it had served."""
    kept: list[_Entry] = []
    undone = 0
    for attempt in sorted({log.attempt for log in logs}):
        mine = [log for log in logs if log.attempt == attempt]
        entries = [_Entry(r, log) for log in mine for r in log.records if r.feed == feed]
        firsts = {e.log.rank: e.record.served for e in reversed(entries)}
        if not firsts:
            continue
        start, start_step = min(firsts.values()), mine[0].start_step
        if len(set(firsts.values())) > 1:
            violations.append(
                f"{feed}: the ranks of attempt {attempt} continued at different batches: {firsts}"
            )
        stay = [e for e in kept if e.record.served < start or (e.record.ended and e.record.served == start)]
        gone = [e for e in kept if e.record.served >= start and not e.record.ended]
        undone += len(gone)
        again = max((e.record.again for e in entries), default=0)
        for entry in gone:
            if entry.record.step < start_step and entry.record.served >= start + again:
                violations.append(
                    f"{feed}: the batch of {entry} was handed out again by attempt {attempt}, "
                    f"whose checkpoint of step {start_step} had been trained on it"
                )
                break
        for entry in stay:
            if entry.record.step > start_step:
                violations.append(
                    f"{feed}: the batch of {entry} was not handed out again by attempt {attempt}, "
                    f"whose checkpoint of step {start_step} had not been trained on it"
                )
                break
        kept = stay + entries
    return kept, undone


def _check_batches(feed: str, survivors: Sequence[_Entry], violations: list[str]) -> None:
    """Every batch number once on every rank, and none missing. The newest batch may still be under way."""
    ranks: dict[int, set[int]] = defaultdict(set)
    worlds: dict[int, int] = {}
    for entry in survivors:
        if entry.record.ended:
            continue
        number = entry.record.served
        if entry.log.rank in ranks[number]:
            violations.append(f"{feed}: batch {number} was handed out twice, last in {entry}")
            return
        ranks[number].add(entry.log.rank)
        worlds[number] = entry.log.world
    for expected, number in enumerate(sorted(ranks)):
        if expected != number:
            violations.append(f"{feed}: batch {expected} of the run is in no log")
            return
        missing = set(range(worlds[number])) - ranks[number]
        if missing and number < len(ranks) - 1:
            violations.append(f"{feed}: batch {number} is missing from the log of rank {min(missing)}")
            return


def _check_pass(key: Pass, entries: Sequence[_Entry], violations: list[str]) -> PassReport:
    feed, epoch, passes = key
    where = f"{feed}, epoch {epoch}" + (f", pass {passes + 1}" if passes else "")
    handed = [e for e in entries if not e.record.ended]
    ends = [e.record for e in entries if e.record.ended]
    padding = sum(e.record.padding for e in handed)
    samples = sum(len(e.record.indices) for e in handed) - padding
    first = entries[0].record
    left_out, verdict = 0, None
    if first.once_each and first.size is not None:
        problem = _twice(handed, first.size) or (_never(handed, first) if ends else None)
        if problem:
            violations.append(f"{where}: {problem}")
        verdict = problem is None
        left_out = first.size - samples if ends and verdict else 0
    return PassReport(
        feed=feed,
        epoch=epoch,
        passes=passes,
        finished=bool(ends),
        batches=len({e.record.served for e in handed}),
        samples=samples,
        padding=padding,
        left_out=left_out,
        exactly_once=verdict,
    )


def _own(entries: Sequence[_Entry]) -> Iterator[np.ndarray]:
    for entry in entries:
        indices = np.asarray(entry.record.indices)
        yield indices[: len(indices) - entry.record.padding].astype(np.int64)


def _counts(entries: Sequence[_Entry], size: int) -> np.ndarray:
    own = list(_own(entries))
    return np.bincount(np.concatenate(own), minlength=size) if own else np.zeros(size, dtype=np.int64)


def _twice(entries: Sequence[_Entry], size: int) -> str | None:
    counts = _counts(entries, size)
    if len(counts) > size:
        return f"index {len(counts) - 1} came, and the dataset ends at {size - 1}"
    repeated = np.flatnonzero(counts > 1)
    if not len(repeated):
        return None
    index = int(repeated[0])
    # The earliest repeat in time is what a person wants to look at.
    again = set(repeated.tolist())
    seen: dict[int, _Entry] = {}
    for entry, own in sorted(
        zip(entries, _own(entries), strict=True), key=lambda pair: pair[0].record.served
    ):
        for i in again.intersection(own.tolist()):
            if i in seen:
                return f"index {i} came twice, in {seen[i]} and in {entry}"
            seen[i] = entry
    return f"index {index} came twice in one batch, {seen[index]}"


def _never(entries: Sequence[_Entry], declared: AuditRecord) -> str | None:
    size = declared.size or 0
    missing = np.flatnonzero(_counts(entries, size) == 0)
    if not len(missing):
        return None
    widths: dict[int, int] = defaultdict(int)
    for entry in entries:
        widths[entry.record.served] += len(entry.record.indices)
    if declared.may_drop and len(missing) < max(widths.values(), default=size + 1):
        return None
    return f"index {int(missing[0])} never came ({len(missing):,} of {size:,} are missing)"
