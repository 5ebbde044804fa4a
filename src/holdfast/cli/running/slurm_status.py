"""The jobs that have worked on a run, read from its own records, and those that still wait, asked of Slurm.

Works without Slurm too: then the records are all there is to say.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoints.find import committed
from holdfast.checkpoints.verify import is_complete
from holdfast.cli.render import NEVER, plural, shorten, when
from holdfast.cli.result import Block, Table
from holdfast.events import AttemptStarted, Event, RunEnded, RunStarted
from holdfast.format.manifest import Manifest, utc_text
from holdfast.stores.journal import read_events
from holdfast.stores.store import CheckpointStore
from holdfast.units import format_seconds

_ASK_SECONDS = 20.0


@dataclass(frozen=True)
class TrainedProcess:
    """One process that trained. `job` is Slurm's number for it, or None outside Slurm."""

    writer_epoch: int
    job: str | None
    host: str
    started: str
    seconds: float | None
    first_step: int
    last_step: int | None
    ended: str


@dataclass(frozen=True)
class Waiting:
    job: str
    state: str
    reason: str


@dataclass(frozen=True)
class Chain:
    run: str
    complete: bool
    attempts: tuple[TrainedProcess, ...]
    in_slurm: tuple[Waiting, ...]


def read_chain(store: CheckpointStore) -> Chain:
    manifests = [found.manifest for found in committed(store) if found.manifest is not None]
    jobs = jobs_of(_owners(store), manifests)
    attempts = attempts_of(read_events(store.where), jobs)
    labels = {label.partition("_")[0] for label in jobs.values()}
    return Chain(store.where, is_complete(store), attempts, tuple(_ask_slurm(sorted(labels))))


def jobs_of(owners: Mapping[int, str], manifests: list[Manifest]) -> dict[int, str]:
    """Writer epoch -> job. The writers' claims outlive every checkpoint; manifests know the array as well."""
    jobs = {epoch: job for epoch, job in owners.items() if job}
    for manifest in manifests:
        if label := _label(manifest.environment.get("variables")):
            jobs[manifest.writer_epoch] = label
    return jobs


def _owners(store: CheckpointStore) -> dict[int, str]:
    return {claim.epoch: claim.owner.job for claim in store.claims() if claim.owner is not None}


def attempts_of(events: list[Event], jobs: Mapping[int, str]) -> tuple[TrainedProcess, ...]:
    """Pure: the spells of the journal, with the jobs they belonged to."""
    starts = [index for index, event in enumerate(events) if isinstance(event, RunStarted)]
    found = []
    for start, stop in zip(starts, [*starts[1:], len(events)], strict=True):
        begun, spell = events[start], events[start:stop]
        assert isinstance(begun, RunStarted)
        end = next((event for event in spell if isinstance(event, RunEnded)), None)
        is_last = stop == len(events)
        # What the next job's supervisor wrote before its training began is no part of this one.
        after = next((i for i, event in enumerate(spell) if isinstance(event, AttemptStarted)), len(spell))
        last = end or spell[max(after - 1, 0)]
        found.append(
            TrainedProcess(
                writer_epoch=begun.writer_epoch,
                job=jobs.get(begun.writer_epoch),
                host=begun.host,
                started=utc_text(begun.time),
                seconds=max(last.time - begun.time, 0.0) if end or not is_last else None,
                first_step=begun.step,
                last_step=max(step for event in spell if (step := getattr(event, "step", None)) is not None),
                ended=end.how if end else ("running or killed" if is_last else "killed"),
            )
        )
    return tuple(found)


def _label(variables: Any) -> str | None:
    if not isinstance(variables, dict):
        return None
    array, task = variables.get("SLURM_ARRAY_JOB_ID"), variables.get("SLURM_ARRAY_TASK_ID")
    label = f"{array}_{task}" if array and task else variables.get("SLURM_JOB_ID")
    return str(label) if label else None


def _ask_slurm(jobs: list[str]) -> list[Waiting]:
    """What squeue knows of these jobs. No answer is no news, not an error: this command only shows."""
    if not jobs or shutil.which("squeue") is None:
        return []
    command = ["squeue", "--noheader", f"--jobs={','.join(jobs)}", "--format=%i|%T|%r"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return []
    rows = [line.split("|") for line in done.stdout.splitlines()]
    return [Waiting(row[0], row[1], row[2]) for row in rows if len(row) == 3]


def chain_text(chain: Chain) -> Iterator[Block]:
    rows = [
        [
            one.job or NEVER,
            shorten(one.host, 20),
            when(one.started),
            NEVER if one.seconds is None else format_seconds(round(one.seconds)),
            f"{one.first_step}-{one.last_step}",
            one.ended,
        ]
        for one in chain.attempts
    ]
    header = ["job", "host", "started", "lasted", "steps", "ended"]
    yield Table(header, rows, left=(0, 1, 2, 5)) if rows else "no attempt yet"
    for waiting in chain.in_slurm:
        yield f"in Slurm: {waiting.job} {waiting.state} ({waiting.reason})"
    said = "complete" if chain.complete else "not complete"
    yield f"{plural(len(chain.attempts), 'attempt')}; the work is {said}"
