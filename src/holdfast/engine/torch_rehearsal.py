"""A run that is only rehearsed: in a scratch folder, every step written down, killed where it was planned."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from holdfast.capture.torch_registry import Tracked
from holdfast.engine.loop_frames import Place, user_scopes
from holdfast.engine.rehearsal_plan import Plan, Records, plan_in
from holdfast.engine.torch_loop_look import Coverage, fix_of
from holdfast.engine.torch_loop_marks import exact
from holdfast.engine.torch_loop_things import Thing, hidden_in_modules, things_in
from holdfast.engine.torch_session import Session
from holdfast.errors import HoldfastError

_MOST_PARTS = 2000
_LATER = 2  # boundaries between a save and the kill behind it: steps that must be made again
_MEET_SECONDS = 30.0  # for ranks whose loops are of unequal length, and some never come


class Rehearsal:
    def __init__(self, plan: Plan, path: str | os.PathLike[str]) -> None:
        self._plan = plan
        given = os.fspath(path)
        digest = hashlib.sha256(given.encode()).hexdigest()[:8]
        # A script may open several runs: each has a folder of its own.
        self.folder = os.path.join(plan.folder, f"{os.path.basename(given.rstrip('/')) or 'run'}-{digest}")
        self._batches: list[str] = []
        self._begun = False
        self._saved_at: int | None = None
        self._session: Session | None = None

    @classmethod
    def asked_for(cls, path: str | os.PathLike[str]) -> Rehearsal | None:
        plan = plan_in(os.environ)
        if plan is not None and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":
            # torchrun --max-restarts: the rehearsal restarts by itself, and writes each process down apart.
            os._exit(1)
        return None if plan is None else cls(plan, path)

    def open(
        self, session: Session, tracked: Sequence[Tracked], coverage: Coverage, made_at: Place | None
    ) -> None:
        self._session = session
        self._tracked = tracked
        self._coverage = coverage
        self._made_at = made_at
        rank = session.together.team.rank if session.together else 0
        self._records = Records(self._plan.records, rank)
        self._records.add(
            {
                "event": "opened", "resumed": session.resumed.step if session.resumed else None,
                "file": made_at.file if made_at else "", "line": made_at.line if made_at else 0,
            }
        )  # fmt: skip

    # ---- data

    def watched(self, handed_out: Any) -> Any:
        return _Watched(self, handed_out)

    def handed_out(self, item: Any) -> None:
        if threading.current_thread() is threading.main_thread() and not self._begun:
            self._begun = True
            # What the loop has in hand before its first step: after a restart, what it lost.
            self._write("begun", None)
        if not isinstance(item, int):
            self._batches.append(exact(item))

    # ---- boundaries

    @property
    def is_over(self) -> bool:
        return False

    def boundary(self, loss: Any) -> None:
        self._begun = True
        self._write("step", loss)
        self._batches = []

    def passed(self) -> None:
        session, plan = self._session, self._plan
        assert session is not None
        step, resumed = session.state.step, session.resumed.step if session.resumed else 0
        if plan.save_every and step % plan.save_every == 0 and session.boundary.is_clean:
            session.saves.now("a rehearsal")
        if plan.save_from and self._saved_at is None and step >= max(plan.save_from, resumed + 1):
            if session.boundary.is_clean:
                self._saved_at = step
                session.saves.now("a rehearsal")
                session.saves.saver.wait_for_all()
                if plan.kill == "at a save":
                    self._meet()
                    self._die()
        elif plan.kill and self._saved_at is not None and step >= self._saved_at + _LATER:
            if plan.kill == "behind a save":
                self._meet()
                self._die()
            elif session.boundary.is_clean:
                # The one before is whole: what is resumed is known, and this one must not be in its way.
                self._meet()
                session.saves.now("a rehearsal")
                self._die()
        if step >= plan.stop_at:
            session.saves.saver.wait_for_all()
            self._records.add({"event": "stopped", "step": step})
            self._meet()
            if session.together is not None:
                session.together.team.part()
            sys.stdout.flush()
            sys.stderr.flush()
            # At once: what comes behind the loop is not rehearsed, and must not take its time or write files.
            os._exit(0)

    def _meet(self) -> None:
        """Every rank is here: none ends in the middle of what another one still needs of it."""
        assert self._session is not None
        if self._session.together is not None:
            with contextlib.suppress(HoldfastError):
                self._session.together.team.gather("rehearsal", b"", _MEET_SECONDS)

    def _die(self) -> None:
        assert self._session is not None
        self._records.add({"event": "killed", "step": self._session.state.step, "saved": self._saved_at})
        if "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("LOCAL_RANK") == "0":
            # torchrun --max-restarts would start them again, and may wait for minutes for its dead ones.
            os.kill(os.getppid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGKILL)

    # ---- what is written down

    def _write(self, event: str, loss: Any) -> None:
        assert self._session is not None
        state = self._session.state
        values = {item.key: item.take() for item in self._tracked}
        run, streams = values.pop("run"), values.pop("rng")
        self._records.add(
            {
                "event": event,
                "step": state.step,
                "epoch": state.epoch,
                "loss": None if loss is None else _number(loss).hex(),
                "batches": list(self._batches),
                "streams": {name: exact(value) for name, value in streams.items()},
                "tracked": {key: _parts(value) for key, value in values.items()},
                "extras": {key: exact(value) for key, value in run["extras"].items()},
                "remembered": {key: exact(value) for key, value in run["memories"].items()},
                "things": self._things(),
            }
        )

    def _things(self) -> dict[str, Any]:
        things = things_in(user_scopes(sys._getframe(1)), [self, *self._coverage.refresh()])
        for key, module in self._coverage.modules:
            for thing in hidden_in_modules(key, module, self._made_at or Place("?", 0)):
                things.setdefault(thing.name, thing)
        return {name: self._described(thing) for name, thing in things.items() if not self._holds(thing)}

    def _holds(self, thing: Thing) -> bool:
        if thing.kind == "loader":
            return any(thing.value is loader for loader in self._coverage.loaders())
        return self._coverage.holds(thing)

    def _described(self, thing: Thing) -> dict[str, Any]:
        return {
            "name": thing.name, "kind": thing.kind, "called": thing.called, "mark": exact(thing.value),
            "file": thing.place.file, "line": thing.place.line, "carried": thing.is_carried,
            "fix": fix_of(thing),
        }  # fmt: skip


class _Watched:
    """Batches on their way to training, seen as they are handed out; everything else is the original's."""

    def __init__(self, rehearsal: Rehearsal, handed_out: Any) -> None:
        self._rehearsal = rehearsal
        self._handed_out = handed_out
        self._items: Iterator[Any] | None = None

    def __iter__(self) -> _Watched:
        self._items = iter(self._handed_out)
        return self

    def __next__(self) -> Any:
        if self._items is None:
            self._items = iter(self._handed_out)
        item = next(self._items)
        self._rehearsal.handed_out(item)
        return item

    def __len__(self) -> int:
        return len(self._handed_out)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handed_out, name)


def _number(loss: Any) -> float:
    return float(loss.detach() if isinstance(loss, torch.Tensor) else loss)


def _parts(value: Any) -> Mapping[str, str]:
    """A digest for each leaf that has a name of its own, so that a difference can be named."""
    found: dict[str, str] = {}

    def visit(item: Any, path: str, depth: int) -> None:
        if isinstance(item, Mapping) and item and depth < 6:
            for key, inner in item.items():
                visit(inner, f"{path}.{key}" if path else str(key), depth + 1)
        else:
            found[path] = exact(item)

    visit(value, "", 0)
    return found if len(found) <= _MOST_PARTS else {"": exact(value)}
