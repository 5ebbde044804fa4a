"""The order of a rehearsal: which processes are started, with which plans, and when enough is known.

`launch(environment, output)` starts the user's command and gives its exit code: how, is the caller's matter.
"""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from holdfast.doctor.rehearsed import (
    Cause,
    Difference,
    Record,
    RehearsalVerdict,
    compare_resumed,
    compare_undisturbed,
    steps_of,
)
from holdfast.engine.rehearsal_plan import VARIABLE, Kill, Plan, read_records
from holdfast.errors import SetupError

Launch = Callable[[Mapping[str, str], Path], int]
# What each rank wrote down; one process without ranks is rank 0.
Ranks = dict[int, list[Record]]
_SAVE_EVERY = 5


class _Processes:
    """One rehearsal's processes."""

    def __init__(self, launch: Launch, scratch: Path, steps: int) -> None:
        self._launch = launch
        self._scratch = scratch
        self._steps = steps
        self._count = 0

    def process(self, folder: str, *, save_every: int = 0, save_from: int = 0, kill: Kill = "") -> Ranks:
        self._count += 1
        records = self._scratch / f"records{self._count}"
        plan = Plan(
            folder=str(self._scratch / folder), records=str(records), stop_at=self._steps,
            save_every=save_every, save_from=save_from, kill=kill,
        )  # fmt: skip
        path, said = self._scratch / f"plan{self._count}.json", self._scratch / f"output{self._count}.txt"
        plan.write(path)
        # Whatever logs over a network: a rehearsal is nobody's experiment.
        code = self._launch({VARIABLE: str(path), "WANDB_MODE": "disabled"}, said)
        found = read_records(records)
        # One that was killed takes the others with it, and the launcher has a code of its own for that.
        was_killed = any(record["event"] == "killed" for rank in found.values() for record in rank)
        if code not in (0, -signal.SIGKILL) and not was_killed:
            tail = said.read_text(errors="replace")[-2000:] if said.exists() else ""
            raise SetupError(f"the command ended with code {code}\n{tail}", hint="does it run by itself?")
        if not found:
            raise SetupError(
                "the command opened no run", hint="put the training loop into: with holdfast.Run(...) as run:"
            )
        return found


def rehearse(launch: Launch, scratch: Path, *, steps: int, tell: Callable[[str], None]) -> RehearsalVerdict:
    scratch.mkdir(parents=True, exist_ok=True)
    stage = _Processes(launch, scratch, steps)
    tell("undisturbed")
    reference = stage.process("undisturbed")
    made = sorted(steps_of(reference[min(reference)]))
    ranks = len(reference)
    if len(made) < 6:
        raise SetupError(
            f"the command made {len(made)} steps, too few to kill and resume",
            hint="is run.end_step() reached? Use run.batches or run.steps, or call run.end_step()",
        )
    tried = ["twice undisturbed"]
    tell("undisturbed, once more")
    difference = _undisturbed(reference, stage.process("again"), "undisturbed, once more")
    if difference is not None:
        return RehearsalVerdict(False, len(made), difference, tried=tuple(tried), ranks=ranks)
    tried.append("with saves")
    tell("with saves")
    saving = stage.process("saving", save_every=_SAVE_EVERY)
    difference = _undisturbed(reference, saving, "with saves")
    if difference is not None:
        return RehearsalVerdict(False, len(made), difference, tried=tuple(tried), ranks=ranks)
    return _killed(stage, reference, made, tried, tell)


def _killed(
    stage: _Processes, reference: Ranks, made: list[int], tried: list[str], tell: Callable[[str], None]
) -> RehearsalVerdict:
    harmless: dict[str, Cause] = {}
    when = ""
    for save_from, kill, how in [*_points(reference[min(reference)], made), (0, "", "")]:
        tell(f"killed {how}" if how else "to the end")
        attempt = stage.process("killed", save_from=save_from, kill=kill, save_every=0)
        if when:
            difference, lost = _resumed(
                reference, attempt, when, whole=not kill, lost_before=list(harmless.values())
            )
            harmless.update({cause.name: cause for cause in lost})
        else:
            difference = _undisturbed_start(reference, attempt)
        if difference is not None:
            return RehearsalVerdict(False, len(made), difference, tried=tuple(tried), ranks=len(reference))
        killed = (r for rank in attempt.values() for r in rank if r["event"] == "killed")
        resumable = next((record["saved"] for record in killed), None)
        when = f"resumed after a kill {how}" + (f" (saved at step {resumable})" if resumable else "")
        if how:
            tried.append(f"killed {how}")
    return RehearsalVerdict(True, len(made), None, tuple(harmless.values()), tuple(tried), len(reference))


# ---- every rank with itself


def _undisturbed(reference: Ranks, again: Ranks, when: str) -> Difference | None:
    return _first(
        {rank: compare_undisturbed(ours, again.get(rank, []), when) for rank, ours in reference.items()}
    )


def _undisturbed_start(reference: Ranks, attempt: Ranks) -> Difference | None:
    """Processes that were killed before their end: what they did until then."""
    last = {rank: max(steps_of(records), default=0) for rank, records in attempt.items()}
    cut = {
        rank: [r for r in records if r["event"] != "step" or r["step"] <= last.get(rank, 0)]
        for rank, records in reference.items()
    }
    return _undisturbed(cut, attempt, "with a save")


def _resumed(
    reference: Ranks, attempt: Ranks, when: str, *, whole: bool, lost_before: Sequence[Cause]
) -> tuple[Difference | None, list[Cause]]:
    found = {
        rank: compare_resumed(ours, attempt.get(rank, []), when, whole=whole, lost_before=lost_before)
        for rank, ours in reference.items()
    }
    difference = _first({rank: difference for rank, (difference, _) in found.items()})
    return difference, [cause for _, lost in found.values() for cause in lost]


def _first(found: Mapping[int, Difference | None]) -> Difference | None:
    """The earliest difference of any rank: later ones may be its consequences."""
    told = [dataclasses.replace(each, rank=rank) for rank, each in found.items() if each is not None]
    return min(told, key=lambda each: (each.step, each.rank), default=None)


def _points(reference: Sequence[Record], made: Sequence[int]) -> list[tuple[int, Kill, str]]:
    """Where to kill, in order: inside an epoch, at the end of one if it is reached, during a save."""
    last = made[-1]
    epochs = {step: record["epoch"] for step, record in steps_of(reference).items()}
    ends = [step for step in made[:-1] if epochs[step + 1] > epochs[step]]
    first = max(2, last // 4)
    if first in ends:
        first += 1
    points: list[tuple[int, Kill, str]] = [(first, "behind a save", "inside an epoch")]
    behind = first + 3
    for end in ends:
        if end >= behind and end + 4 < last:
            points.append((end, "at a save", "at the end of an epoch"))
            behind = end + 1
            break
    late = max(behind, 2 * last // 3)
    if late + 1 < last:
        points.append((late, "during a save", "during a save"))
    return points
