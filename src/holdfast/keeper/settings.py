"""What a job of several nodes is told: how many, how many in reserve, and how long anything may take."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

from holdfast.errors import SetupError
from holdfast.jobs.attempts import RestartRules
from holdfast.jobs.environment import WallDeadline
from holdfast.jobs.watchdog import HangLimits


@dataclass(frozen=True)
class KeeperSettings:
    """The same on every node, except for `address` and `host`, what people call this machine."""

    nodes: int
    meet: str
    address: str
    host: str = field(default_factory=socket.gethostname)
    spares: int = 0
    # With fewer than `nodes` but as many as this, training goes on in a smaller world.
    min_nodes: int | None = None
    procs_per_node: int = 1
    run: str | None = None
    rules: RestartRules = field(default_factory=RestartRules)
    hang: HangLimits = field(default_factory=HangLimits)
    deadline: WallDeadline | None = None
    # After a stop was asked for: workers may still have to finish a step and a save.
    grace: float = 600.0
    # After a failure: the others cannot get on any more, but may still say what they saw.
    kill_grace: float = 1.0
    beat_seconds: float = 1.0
    # A dead process breaks its connections at once; this is for a node that lost its power or its network.
    silence_seconds: float = 10.0
    # From the first keeper until enough are there.
    join_seconds: float = 600.0
    # With enough nodes there, spares are waited for no longer than this.
    spare_seconds: float = 10.0
    # A shared file system that fails over takes minutes; until then no generation can be founded.
    storage_tries: int = 60
    storage_pause: float = 10.0
    # What the survivors may take to make the last checkpoint last.
    flush_seconds: float = 1800.0

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.procs_per_node < 1 or self.spares < 0:
            raise SetupError("nodes and processes are counted from 1 up, spares from 0")
        if not 1 <= self.fewest <= self.nodes:
            raise SetupError(
                f"--min-nodes {self.min_nodes} does not lie between 1 and the {self.nodes} of --nodes"
            )
        if not 0 < self.beat_seconds < self.silence_seconds:
            raise SetupError("silence must be longer than the time between two signs of life")

    @property
    def fewest(self) -> int:
        return self.nodes if self.min_nodes is None else self.min_nodes

    @property
    def pulse_seconds(self) -> float:
        """How long the shared folder is watched for a leader that cannot be reached, before another leads."""
        return max(4 * self.beat_seconds, self.silence_seconds / 2)

    @property
    def must_agree(self) -> dict[str, int]:
        """What two keepers of one job cannot see differently."""
        return {"nodes": self.nodes, "min_nodes": self.fewest, "procs_per_node": self.procs_per_node}
