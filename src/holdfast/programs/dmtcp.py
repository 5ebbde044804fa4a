"""Drives a program that cannot checkpoint at all: DMTCP writes images of its processes, holdfast keeps them.

Calls the three commands of DMTCP when they are on PATH and contains nothing of it. A save stops the program
while its images are written; how often that is worth it, the policy decides from what it measured.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from holdfast.clock import Clock
from holdfast.errors import CorruptCheckpoint, SaveError, SetupError, StoreError
from holdfast.events import Emit, Restored
from holdfast.format.sealed import seal, unseal
from holdfast.jobs.supervisor_child import Child
from holdfast.policy.debt import DebtPolicy
from holdfast.policy.observation import Observation, SaveCost
from holdfast.programs.generations import Generations

log = logging.getLogger("holdfast")
COMMANDS = ("dmtcp_launch", "dmtcp_command", "dmtcp_restart")
HOST = "127.0.0.1"
# Gigabytes of images on a slow disk take minutes; a coordinator that hangs takes for ever.
CHECKPOINT_SECONDS = 1800.0
_ORDER_SECONDS = 30.0
_SUFFIX = ".dmtcp"
_COSTS = "costs"
_UNKNOWN_COST = 120.0
_UNKNOWN_SHARE = 0.25
_FIRST_SAVE_SECONDS = 30.0


def require_dmtcp() -> None:
    """SetupError with the way out if one of the commands is not there."""
    missing = [command for command in COMMANDS if shutil.which(command) is None]
    if missing:
        raise SetupError(
            f"DMTCP is not installed here: {', '.join(missing)} not on PATH",
            hint="load your site's module (often: module load dmtcp) or install it from the DMTCP project, "
            "or use `holdfast app RECIPE` if the program writes checkpoints of its own",
        )


def dmtcp_command(command: Sequence[str], *, run: str, interval: str = "auto", keep: str = "2") -> list[str]:
    """The command line of one attempt of `command` under DMTCP, for a supervisor to start and start again."""
    require_dmtcp()
    own = [sys.executable, "-m", "holdfast.cli.main", "app", "--once"]
    return [*own, "--run", run, "--interval", interval, "--keep", keep, "dmtcp", "--", *command]


class DmtcpDriver:
    """Satisfies Driver. `scratch` is where DMTCP writes its images before they are kept."""

    stop_seconds = CHECKPOINT_SECONDS + 60.0
    # Slurm's warning. Not SIGUSR2, with which DMTCP itself stops the threads of the program.
    ignored_signals = (signal.SIGUSR1,)

    def __init__(
        self,
        command: Sequence[str],
        generations: Generations,
        scratch: Path,
        policy: DebtPolicy,
        clock: Clock,
        emit: Emit,
    ) -> None:
        self._command = list(command)
        self._generations = generations
        self._scratch = scratch
        # Apart from what DMTCP writes: an image that only another tier had must not be taken for a new one.
        self._fetched = scratch / "fetched"
        self._policy = policy
        self._clock = clock
        self._emit = emit
        self._looks = 0
        self._port = 0
        self._started = 0.0
        self._seconds_at_start: float | None = None

    @property
    def generation(self) -> int:
        return self._generations.number

    @property
    def stop_before(self) -> float:
        """From the measured costs; while there are none, a share of the time there is."""
        cost = self._save_seconds
        if cost is None:
            return min(_UNKNOWN_COST, _UNKNOWN_SHARE * (self._seconds_at_start or math.inf))
        return max(1.5 * cost + 2.0, 8.0)

    @property
    def knows_its_cost(self) -> bool:
        return self._save_seconds is not None

    @property
    def _save_seconds(self) -> float | None:
        costs = self._policy.explanation()
        if costs.stall_seconds is None or costs.persist_seconds is None:
            return None
        return costs.stall_seconds + costs.persist_seconds

    def start(self, seconds_left: float | None) -> list[str]:
        require_dmtcp()
        self._seconds_at_start, self._started = seconds_left, self._clock.monotonic()
        self._scratch.mkdir(parents=True, exist_ok=True)
        recalled = self._recall_costs()
        self._clear_scratch()
        shutil.rmtree(self._fetched, ignore_errors=True)
        self._port = free_port()
        generation = self._generations.newest_good()
        if generation is None or not generation.files:
            return [
                "dmtcp_launch",
                *self._coordinator(new=True),
                "--ckptdir",
                str(self._scratch),
                *self._command,
            ]
        begun = self._clock.monotonic()
        images = [str(path) for path in self._generations.stored_paths(generation, self._fetched)]
        stored = sum(file.record.size for file in generation.files.values())
        policy = generation.values.get("policy")
        if not recalled and isinstance(policy, dict):
            self._policy.restore_state(policy)
        self._policy.restored(begun, 0, 0.0)
        self._emit(
            Restored(
                time=self._clock.wall(), step=generation.found.step, name=generation.name,
                seconds=self._clock.monotonic() - begun, bytes=stored,
            )
        )  # fmt: skip
        return ["dmtcp_restart", *self._coordinator(new=True), "--ckptdir", str(self._scratch), *images]

    def look(self) -> None:
        self._looks += 1
        now = self._clock.monotonic()
        decision = self._policy.decide(Observation(now=now, step=self._looks, epoch=0))
        if decision.save:
            self.checkpoint(decision.reason)
        elif self._should_learn(now):
            self._started = now
            self.checkpoint("the first one, to learn what it costs")

    def _should_learn(self, now: float) -> bool:
        """The last save before an end must be planned, so a job that has one cannot wait with the first."""
        if self._seconds_at_start is None or self.knows_its_cost:
            return False
        return now - self._started >= min(_FIRST_SAVE_SECONDS, _UNKNOWN_SHARE * self._seconds_at_start)

    def checkpoint(self, reason: str) -> None:
        """An image of every process of the program, committed. The program stands still meanwhile."""
        begun = self._clock.monotonic()
        self._policy.save_started(begun, self._looks)
        try:
            self._order("--bcheckpoint", CHECKPOINT_SECONDS)
            stalled = self._clock.monotonic() - begun
            images = sorted(self._scratch.glob(f"ckpt_*{_SUFFIX}"))
            if not images:
                raise SaveError(
                    f"dmtcp_command --bcheckpoint left no image in {self._scratch}",
                    hint="was the program started under dmtcp_launch, and is it still there?",
                )
            values = {"policy": self._policy.state(), "program": self._command}
            paths = {image.name: image for image in images}
            kept = self._generations.keep(paths, reason=reason, values=values, suffix=_SUFFIX)
        except (SaveError, StoreError):
            self._policy.save_failed(self._clock.monotonic(), self._looks)
            raise
        finally:
            self._clear_scratch()
        now = self._clock.monotonic()
        cost = SaveCost(self._looks, stalled, now - begun - stalled, kept.manifest.total_bytes)
        self._policy.save_committed(now, cost)
        self._remember_costs()

    def stop(self, child: Child, why: str) -> None:
        try:
            self.checkpoint(f"stopping: {why}")
        finally:
            self._order("--kill", _ORDER_SECONDS)

    def ended(self, returncode: int, *, stopping: bool) -> bool:
        complete = returncode == 0 and not stopping
        if complete:
            self._generations.keep({}, reason="the program has finished", complete=True)
        return complete

    # What a save costs is known when it is over, so it cannot be part of it.

    def _remember_costs(self) -> None:
        part = self._scratch / f"{_COSTS}.part"
        try:
            part.write_bytes(seal({"format": 1, "policy": self._policy.state()}))
            os.replace(part, self._scratch / _COSTS)
        except OSError as error:
            log.warning("holdfast: what saves cost could not be written down: %s", error.strerror)

    def _recall_costs(self) -> bool:
        try:
            self._policy.restore_state(unseal((self._scratch / _COSTS).read_bytes())["policy"])
        except (OSError, CorruptCheckpoint, KeyError, TypeError, ValueError):
            return False
        return True

    def _coordinator(self, *, new: bool = False) -> list[str]:
        chosen = ["--coord-host", HOST, "--coord-port", str(self._port)]
        return ["--new-coordinator", *chosen] if new else chosen

    def _order(self, what: str, seconds: float) -> None:
        command = ["dmtcp_command", *self._coordinator(), what]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
        except subprocess.TimeoutExpired as error:
            raise SaveError(
                f"{' '.join(command)} gave no answer within {seconds:.0f} s",
                hint="the image may be too large for this disk: try a faster one, or save less often",
            ) from error
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip()[-300:]
            raise SaveError(f"{' '.join(command)} failed with exit code {done.returncode}: {said}")

    def _clear_scratch(self) -> None:
        """Only DMTCP's own files. What is in the store is the checkpoint; this is a copy, or half a one."""
        for path in self._scratch.glob(f"ckpt_*{_SUFFIX}*"):
            path.unlink(missing_ok=True)
        for path in self._scratch.glob("dmtcp_restart_script*.sh"):
            path.unlink(missing_ok=True)


def free_port() -> int:
    """A port nobody listens on now. Somebody may take it in between: then the start fails and is repeated."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
    return port
