"""Typed records of what happened. Written once; policy, report and simulator all read these same lines.

An event is a fact for people and estimates, never a source of truth about checkpoints: the manifests are.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar


@dataclass(frozen=True, kw_only=True)
class Event:
    """Base of all events. `time` is wall-clock seconds, for display only."""

    kinds: ClassVar[dict[str, type[Event]]] = {}
    time: float

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        Event.kinds[cls.__name__] = cls

    def to_line(self) -> str:
        return json.dumps({"event": type(self).__name__, **asdict(self)}, separators=(",", ":"))

    @staticmethod
    def from_line(line: str) -> Event | None:
        """The event, or None for a torn line or a kind this version does not know."""
        try:
            raw = json.loads(line)
            kind = Event.kinds[raw.pop("event")]
            known = {f.name for f in fields(kind)}
            return kind(**{k: v for k, v in raw.items() if k in known})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None


Emit = Callable[[Event], None]


@dataclass(frozen=True, kw_only=True)
class RunStarted(Event):
    step: int
    host: str
    pid: int
    writer_epoch: int
    # The settings that say when to save, as the user wrote them.
    policy: str = ""
    # What the policy starts from: with it and the journal, every decision can be made again.
    decides: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Progress(Event):
    """A heartbeat, at most every few seconds: what the estimates and the live view read."""

    step: int
    epoch: int
    step_seconds: float
    loss: float | None = None
    # What the policy is doing and why, in one line.
    policy: str = ""


@dataclass(frozen=True, kw_only=True)
class LastSign(Event):
    """The last step of a process that could not say so itself, found by the one that came next. `time` is
    when that step was done."""

    step: int


@dataclass(frozen=True, kw_only=True)
class SaveDecided(Event):
    """`numbers` are what the decision was made from; see `policy/made_again.py`."""

    step: int
    reason: str
    numbers: dict[str, float | None] | None = None


@dataclass(frozen=True, kw_only=True)
class SnapshotTaken(Event):
    """The state is in host memory. `stall_seconds` is what the training thread lost."""

    step: int
    mode: str
    stall_seconds: float
    copy_seconds: float
    bytes: int


@dataclass(frozen=True, kw_only=True)
class SnapshotTorn(Event):
    step: int
    tensor: str


@dataclass(frozen=True, kw_only=True)
class SaveCommitted(Event):
    step: int
    name: str
    persist_seconds: float
    bytes: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class SaveFailed(Event):
    step: int
    error: str


@dataclass(frozen=True, kw_only=True)
class OutputCommitted(Event):
    """Files of the user's own, under `output`. Not a `SaveCommitted`: training cannot resume from them."""

    output: str
    step: int
    name: str
    seconds: float
    bytes: int


@dataclass(frozen=True, kw_only=True)
class CheckpointRejected(Event):
    name: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Restored(Event):
    step: int
    name: str
    seconds: float
    bytes: int
    steps_lost: int | None = None
    # Bytes read from each tier, by all ranks together.
    tiers: dict[str, int] | None = None


@dataclass(frozen=True, kw_only=True)
class CheckpointProtected(Event):
    """Every node has done its share: what `scheme` promises of the loss of nodes holds for this one."""

    name: str
    scheme: str


@dataclass(frozen=True, kw_only=True)
class ProtectFailed(Event):
    """One node could not do its share; the next checkpoint is tried."""

    name: str
    node: str
    error: str


@dataclass(frozen=True, kw_only=True)
class Pruned(Event):
    name: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Warned(Event):
    message: str


@dataclass(frozen=True, kw_only=True)
class RunEnded(Event):
    """`how` is "finished", "stopped" (signal or deadline: planned) or "error"; `why` says what stopped it."""

    step: int
    how: str
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class NoticeReceived(Event):
    """The provider of this machine announced something. `stops` means that the machine will be taken away."""

    source: str
    what: str
    stops: bool


@dataclass(frozen=True, kw_only=True)
class AttemptStarted(Event):
    """A supervisor started the command. `attempt` counts from 0."""

    attempt: int
    pid: int


@dataclass(frozen=True, kw_only=True)
class AttemptEnded(Event):
    """One life of a supervised command, as its supervisor saw it end. `planned` ends are no failures."""

    attempt: int
    cause: str
    detail: str
    planned: bool
    seconds: float
    exit_code: int | None = None
    signal: int | None = None
    checkpoint: str | None = None
    will_restart: bool = False
    then: str = ""


@dataclass(frozen=True, kw_only=True)
class SupervisorEnded(Event):
    attempts: int
    exit_code: int
    why: str


@dataclass(frozen=True, kw_only=True)
class HandedOver(Event):
    """The end of a batch job. `barren`: it brought no new checkpoint. `checkpoint` is the newest then."""

    job: str
    checkpoint: str | None
    barren: bool
    exit_code: int
    why: str


@dataclass(frozen=True, kw_only=True)
class Flushed(Event):
    """A copy of a checkpoint is committed in an outer tier."""

    name: str
    tier: str
    seconds: float
    bytes: int


@dataclass(frozen=True, kw_only=True)
class FlushFailed(Event):
    """Copying outward did not succeed; it is tried again after `retry_seconds`."""

    name: str
    tier: str
    error: str
    retry_seconds: float


@dataclass(frozen=True, kw_only=True)
class FlushSkipped(Event):
    name: str
    tier: str
    why: str
