"""Compares what rehearsed processes wrote down: the first step that differs, the thing, and the likely cause.
Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

Record = dict[str, Any]
# Causes that are worth naming before others.
_KINDS = (
    "loader", "module", "optimizer", "scheduler", "scaler", "generator", "stateful", "iterator", "hidden",
    "value",
)  # fmt: skip
# State that is kept for its own sake, whether or not the next losses show it.
_STATE = ("module", "optimizer", "scheduler", "scaler", "generator", "stateful")


@dataclass(frozen=True)
class Cause:
    """Why numbers differ, as far as can be told: a thing by its name, where it is made, what to write."""

    what: str
    name: str = ""
    kind: str = ""
    file: str = ""
    line: int = 0
    fix: str = ""


@dataclass(frozen=True)
class Difference:
    """The first step at which a process did not do what the undisturbed one had done."""

    when: str
    step: int
    things: tuple[str, ...]
    causes: tuple[Cause, ...] = ()
    rank: int = 0


@dataclass(frozen=True)
class RehearsalVerdict:
    exact: bool
    steps: int
    difference: Difference | None = None
    # What begins anew after a restart without changing what was computed: a printed mean, a counter.
    harmless: tuple[Cause, ...] = ()
    tried: tuple[str, ...] = field(default=())
    ranks: int = 1


def steps_of(records: Iterable[Record]) -> dict[int, Record]:
    return {record["step"]: record for record in records if record["event"] == "step"}


def compare_undisturbed(reference: Sequence[Record], again: Sequence[Record], when: str) -> Difference | None:
    """Two processes that began afresh: is the script deterministic, does saving change it?"""
    found = _first_difference(reference, again, when, whole=True)
    if found is None:
        return None
    begun, other = _begun(reference), _begun(again)
    causes: list[Cause] = []
    if begun is not None and other is not None:
        if begun["tracked"] != other["tracked"]:
            causes.append(
                Cause("the weights differ before the first step", fix="torch.manual_seed(...) first of all")
            )
        used = _used_streams(reference)
        streams = [name for name in _differing(begun["streams"], other["streams"]) if name in used]
        if streams:
            names = " and ".join(streams)
            seeds = {"torch": "torch.manual_seed", "numpy": "np.random.seed", "python": "random.seed"}
            fix = ", ".join(f"{seeds.get(name, name)}(...)" for name in streams)
            causes.append(Cause(f"the random streams of {names} are not seeded", fix=fix))
    if not causes:
        causes = list(_causes_in_step(found, reference, again))
    return Difference(found.when, found.step, found.things, tuple(causes))


def compare_resumed(
    reference: Sequence[Record],
    resumed: Sequence[Record],
    when: str,
    *,
    whole: bool,
    lost_before: Iterable[Cause] = (),
) -> tuple[Difference | None, list[Cause]]:
    """A process that began at a checkpoint. Also what it lost without harm: `lost_before` is what earlier
    restarts had lost, which may show only now."""
    lost = _lost(reference, resumed)
    found = _first_difference(reference, resumed, when, whole=whole)
    if found is None:
        lasting = tuple(cause for cause in lost if _stays_lost(cause, reference, resumed))
        if not lasting:
            return None, lost
        # Averaged weights, say, that the loop does not compute with: they are what somebody trains for.
        step = min(steps_of(resumed))
        return Difference(when, step, tuple(cause.name for cause in lasting), lasting), []
    causes = lost or list(lost_before) or list(_causes_in_step(found, reference, resumed))
    return Difference(found.when, found.step, found.things, tuple(causes)), []


# ---- the first difference


def _first_difference(
    reference: Sequence[Record], other: Sequence[Record], when: str, *, whole: bool
) -> Difference | None:
    expected, found = steps_of(reference), steps_of(other)
    used = _used_streams(reference)
    for step, record in sorted(found.items()):
        if step not in expected:
            return Difference(
                when, step, (f"a step that the undisturbed run, of {len(expected)}, never made",)
            )
        things = tuple(_things_that_differ(expected[step], record, used))
        if things:
            return Difference(when, step, things)
    missing = sorted(set(expected) - set(found) - set(range(min(found, default=1))))
    if whole and missing:
        return Difference(when, missing[0], (f"step {missing[0]} was never made",))
    return None


def _things_that_differ(expected: Record, found: Record, used: set[str]) -> Iterable[str]:
    ours, theirs = expected["batches"], found["batches"]
    if len(ours) != len(theirs):
        yield f"the number of batches that were fetched ({len(theirs)} instead of {len(ours)})"
    elif ours != theirs:
        yield "the batch"
    if expected["loss"] != found["loss"]:
        yield f"the loss ({_number(found['loss'])} instead of {_number(expected['loss'])})"
    if expected["epoch"] != found["epoch"]:
        yield f"the epoch ({found['epoch']} instead of {expected['epoch']})"
    for name in _differing(expected["streams"], found["streams"]):
        if name in used:
            yield f"the random stream of {name}"
    for key, parts in expected["tracked"].items():
        changed = _differing(parts, found["tracked"].get(key, {}))
        if changed:
            more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
            yield f"{key} ({changed[0] or 'all of it'}{more})"
    for name in _differing(expected["extras"], found["extras"]):
        yield f"run.extras[{name!r}]"
    for name in _differing(expected["remembered"], found["remembered"]):
        yield f"what run.remember keeps ({name})"


def _used_streams(reference: Sequence[Record]) -> set[str]:
    """Those that the loop draws from; one that nobody draws from need not be seeded."""
    seen: dict[str, set[str]] = {}
    for record in reference:
        for name, mark in record.get("streams", {}).items():
            seen.setdefault(name, set()).add(mark)
    return {name for name, marks in seen.items() if len(marks) > 1}


def _differing(ours: dict[str, str], theirs: dict[str, str]) -> list[str]:
    return [
        name for name in [*ours, *(n for n in theirs if n not in ours)] if ours.get(name) != theirs.get(name)
    ]


def _number(text: str | None) -> str:
    return "none" if text is None else f"{float.fromhex(text):.9g}"


# ---- why


def _begun(records: Sequence[Record]) -> Record | None:
    return next((record for record in records if record["event"] == "begun"), None)


def _lost(reference: Sequence[Record], resumed: Sequence[Record]) -> list[Cause]:
    """What the loop had in hand at the checkpoint, and did not have when it went on from there."""
    expected = steps_of(reference)
    moving = _moving(reference)
    begun = _begun(resumed)
    first = next((record for record in resumed if record["event"] == "step"), None)
    causes: dict[str, Cause] = {}
    for now in filter(None, (begun, first)):
        before = expected.get(now["step"])
        if before is None:
            continue
        at_first_step = now is first
        for name, thing in now["things"].items():
            was = before["things"].get(name)
            if thing["kind"] == "loader":
                causes[name] = _cause(thing, "is read directly, so a restart begins it anew")
            elif was is None or was["mark"] == thing["mark"] or name not in moving:
                continue
            elif thing["kind"] in ("value", "hidden") and not (thing["carried"] or was["carried"]):
                # Made anew by each step, or held by something that is named itself.
                if at_first_step or not _is_kept(name, reference):
                    continue
                causes[name] = _cause(thing, "is not tracked")
            else:
                causes[name] = _cause(thing, "is not tracked")
        if causes:
            break
    return sorted(causes.values(), key=lambda cause: _KINDS.index(cause.kind))


def _stays_lost(cause: Cause, reference: Sequence[Record], resumed: Sequence[Record]) -> bool:
    """Whether a thing with a state of its own is another one to the end."""
    last = max(steps_of(resumed).values(), key=lambda record: record["step"], default=None)
    before = steps_of(reference).get(last["step"]) if last is not None else None
    if cause.kind not in _STATE or last is None or before is None:
        return False
    now, was = last["things"].get(cause.name), before["things"].get(cause.name)
    return now is not None and was is not None and now["mark"] != was["mark"]


def _moving(reference: Sequence[Record]) -> set[str]:
    """What an undisturbed run changes at all."""
    marks: dict[str, set[str]] = {}
    for record in reference:
        for name, thing in record.get("things", {}).items():
            marks.setdefault(name, set()).add(thing["mark"])
    return {name for name, seen in marks.items() if len(seen) > 1}


def _is_kept(name: str, reference: Sequence[Record]) -> bool:
    """Whether it was there before the loop began: what a step makes for itself is not."""
    begun = _begun(reference)
    return begun is not None and name in begun["things"]


def _cause(thing: dict[str, Any], what: str) -> Cause:
    called = f"{thing['name']} ({thing['called']})"
    return Cause(f"{called} {what}", thing["name"], thing["kind"], thing["file"], thing["line"], thing["fix"])


def _causes_in_step(
    found: Difference, reference: Sequence[Record], other: Sequence[Record]
) -> Iterable[Cause]:
    expected, record = steps_of(reference).get(found.step), steps_of(other).get(found.step)
    if expected is None or record is None:
        yield Cause(
            "the loop counts its steps by itself, and a restart begins that count anew",
            fix="for step in run.steps(count), or for epoch in run.epochs(count)",
        )
        return
    ours, theirs = expected["batches"], record["batches"]
    if len(ours) != len(theirs):
        yield Cause(
            "a batch was fetched ahead: training had not used it when the checkpoint was made",
            fix='fetch it where it is used, or keep it: run.extras["ahead"] = batch before run.end_step',
        )
    elif ours != theirs:
        yield Cause(
            "the data came in another order, or changed in another way",
            fix="draw from torch, numpy or random as seeded at the top, and read through run.batches(loader)",
        )
    elif drawn := set(_differing(expected["streams"], record["streams"])) & _used_streams(reference):
        names = " and ".join(sorted(drawn))
        yield Cause(
            f"more or fewer numbers were drawn from {names} in this step",
            fix="draw behind `with holdfast.Run(...)` only what every step draws",
        )
    else:
        yield Cause(
            "an operation is not deterministic, or depends on something that the loop's frames do not show",
            fix="torch.use_deterministic_algorithms(True); what is kept elsewhere belongs into Run(...)",
        )
