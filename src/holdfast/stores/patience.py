"""How long to go on trying against a server that does not answer."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

# Of its own: training's random streams must not move because a server stumbled.
_jitter = random.Random()


@dataclass(frozen=True)
class Patience:
    """The client repeats single requests within `retry_seconds`; `attempts` is how often a whole call is
    made. Together they bound how long any verb of a store can take."""

    attempts: int = 3
    first_pause: float = 0.25
    longest_pause: float = 4.0
    connect_seconds: float = 5.0
    request_seconds: float = 60.0
    request_retries: int = 4
    retry_seconds: float = 60.0

    def tries(self) -> Iterator[int]:
        """0, 1, 2 … with a growing pause before each but the first."""
        pause = self.first_pause
        for attempt in range(self.attempts):
            if attempt:
                time.sleep(pause * _jitter.uniform(0.5, 1.0))
                pause = min(2 * pause, self.longest_pause)
            yield attempt

    def once(self) -> Self:
        return replace(self, attempts=1)
