"""The order of a rehearsal: which processes are started, with which plans, and when enough is known.

`launch(environment, output)` starts the user's command and gives its exit code: how, is the caller's matter.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from holdfast.doctor.rehearsed import (
    Cause,
    Difference,
    Record,
    Verdict,
    compare_resumed,
    compare_undisturbed,
    steps_of,
)
from holdfast.engine.rehearsal_plan import VARIABLE, Kill, Plan, read_records
from holdfast.errors import SetupError

Launch = Callable[[Mapping[str, str], Path], int]
_SAVE_EVERY = 5


class _Stage:
    """One rehearsal's processes."""

    def __init__(self, launch: Launch, scratch: Path, steps: int) -> None:
        self._launch = launch
        self._scratch = scratch
        self._steps = steps
        self._count = 0

    def process(
        self, folder: str, *, save_every: int = 0, save_from: int = 0, kill: Kill = ""
    ) -> list[Record]:
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
        was_killed = any(record["event"] == "killed" for record in found)
        if code not in (0, -signal.SIGKILL) and not was_killed:
            tail = said.read_text(errors="replace")[-2000:] if said.exists() else ""
            raise SetupError(f"the command ended with code {code}\n{tail}", hint="does it run by itself?")
        if not found:
            raise SetupError(
                "the command opened no run", hint="put the training loop into: with holdfast.Run(...) as run:"
            )
        return found


def rehearse(launch: Launch, scratch: Path, *, steps: int, tell: Callable[[str], None]) -> Verdict:
    scratch.mkdir(parents=True, exist_ok=True)
    stage = _Stage(launch, scratch, steps)
    tell("undisturbed")
    reference = stage.process("undisturbed")
    made = sorted(steps_of(reference))
    if len(made) < 6:
        raise SetupError(
            f"the command made {len(made)} steps, too few to kill and resume",
            hint="is run.end_step() reached? Use run.batches or run.steps, or call run.end_step()",
        )
    tried = ["twice undisturbed"]
    tell("undisturbed, once more")
    difference = compare_undisturbed(reference, stage.process("again"), "undisturbed, once more")
    if difference is not None:
        return Verdict(False, len(made), difference, tried=tuple(tried))
    tried.append("with saves")
    tell("with saves")
    saving = stage.process("saving", save_every=_SAVE_EVERY)
    difference = compare_undisturbed(reference, saving, "with saves")
    if difference is not None:
        return Verdict(False, len(made), difference, tried=tuple(tried))
    return _killed(stage, reference, made, tried, tell)


def _killed(
    stage: _Stage, reference: list[Record], made: list[int], tried: list[str], tell: Callable[[str], None]
) -> Verdict:
    harmless: dict[str, Cause] = {}
    when = ""
    for save_from, kill, how in [*_points(reference, made), (0, "", "")]:
        tell(f"killed {how}" if how else "to the end")
        attempt = stage.process("killed", save_from=save_from, kill=kill, save_every=0)
        if when:
            difference, lost = compare_resumed(
                reference, attempt, when, whole=not kill, lost_before=harmless.values()
            )
            harmless.update({cause.name: cause for cause in lost})
        else:
            difference = compare_undisturbed_start(reference, attempt)
        if difference is not None:
            return Verdict(False, len(made), difference, tried=tuple(tried))
        resumable = next((r["saved"] for r in attempt if r["event"] == "killed"), None)
        when = f"resumed after a kill {how}" + (f" (saved at step {resumable})" if resumable else "")
        if how:
            tried.append(f"killed {how}")
    return Verdict(True, len(made), None, tuple(harmless.values()), tuple(tried))


def compare_undisturbed_start(reference: Sequence[Record], attempt: Sequence[Record]) -> Difference | None:
    """A process that was killed before its end: what it did until then."""
    last = max(steps_of(attempt), default=0)
    cut = [r for r in reference if r["event"] != "step" or r["step"] <= last]
    return compare_undisturbed(cut, attempt, "with a save")


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
