"""A training process that the demo talks to, and may kill. Waits have limits; none outlives its parent."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from holdfast.clock import SystemClock
from holdfast.errors import SetupError

# Importing torch on a busy machine takes a while; a step never does.
_SILENCE_SECONDS = 120.0


class TrainingProcess:
    """`python -m holdfast.cli.torch_demo_training`, one JSON line at a time."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._clock = SystemClock()
        with open(log, "wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "holdfast.cli.torch_demo_training"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                # Ctrl-C is for the demo, which then ends its children itself.
                start_new_session=True,
            )
        assert self._process.stdout is not None
        self._out = self._process.stdout.fileno()
        self._ready = selectors.DefaultSelector()
        self._ready.register(self._out, selectors.EVENT_READ)
        self._rest = b""

    def say(self, **said: Any) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(said).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise self._trouble("ended too early") from error

    def hear(self) -> dict[str, Any]:
        """The next line. SetupError, with what the process wrote last, if it ends or falls silent."""
        give_up = self._clock.monotonic() + _SILENCE_SECONDS
        while b"\n" not in self._rest:
            if not self._ready.select(max(give_up - self._clock.monotonic(), 0.0)):
                raise self._trouble(f"said nothing for {_SILENCE_SECONDS:.0f} s")
            got = os.read(self._out, 1 << 16)
            if not got:
                raise self._trouble("ended too early")
            self._rest += got
        line, _, self._rest = self._rest.partition(b"\n")
        heard: dict[str, Any] = json.loads(line)
        return heard

    def hear_until(self, event: str) -> dict[str, Any]:
        while (heard := self.hear())["event"] != event:
            pass
        return heard

    def kill(self) -> None:
        """SIGKILL: nothing in the process gets to run any more."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(timeout=_SILENCE_SECONDS)

    def unread_steps(self) -> list[int]:
        """Steps the process had reported before it died and nobody has read yet."""
        while got := os.read(self._out, 1 << 16):
            self._rest += got
        lines = [line for line in self._rest.split(b"\n")[:-1] if line]
        return [said["step"] for said in map(json.loads, lines) if said["event"] == "step"]

    def _trouble(self, what: str) -> SetupError:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        cause = f": {lines[-1]}" if lines else ""
        return SetupError(
            f"the demo's training process {what}{cause}", hint=f"its messages are in {self._log}"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(timeout=_SILENCE_SECONDS)
        self._ready.close()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                # What a dead process did not read is not missed.
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
