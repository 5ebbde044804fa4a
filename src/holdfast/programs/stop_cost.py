"""How long before the end of its job a program is asked to stop: from how long stopping took before."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

from holdfast.errors import CorruptCheckpoint
from holdfast.format.sealed import seal, unseal

log = logging.getLogger("holdfast")
FILE = "stop-cost"
_SAFETY = 1.5
_LEAST = 4.0
# While nothing was measured: a share of the time there is, and never less than this.
_SHARE = 0.1
_UNKNOWN = 10.0


class StopCost:
    """Kept in the run's folder, because a job that was stopped has seen the only stop there was."""

    def __init__(self, run: Path) -> None:
        self._path = run / FILE
        self.seconds: float | None = None
        with contextlib.suppress(OSError, CorruptCheckpoint, KeyError, TypeError, ValueError):
            self.seconds = max(float(unseal(self._path.read_bytes())["seconds"]), 0.0)

    def measured(self, seconds: float) -> None:
        # The slower of the last two: one that was quick by chance proves little.
        slower = max(seconds, self.seconds or 0.0)
        self.seconds = seconds
        part = self._path.with_name(f".{FILE}.part")
        try:
            part.write_bytes(seal({"format": 1, "seconds": slower}))
            os.replace(part, self._path)
        except OSError as error:
            log.warning("holdfast: how long stopping took could not be written down: %s", error.strerror)

    def lead(self, seconds_at_start: float | None, longest: float) -> float:
        """Seconds before the end. `longest` is what the recipe allows at most."""
        if self.seconds is not None:
            return min(max(_SAFETY * self.seconds, _LEAST), longest)
        return min(max(_SHARE * (seconds_at_start or 0.0), _UNKNOWN), longest)
