"""Two nodes of one rank each that keep their checkpoints in memory, all killed between two saves to the run's
folder. A program of its own, as forking demands."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "many_ranks"))

from nodes_at_work import Job

if __name__ == "__main__":
    Job(Path(sys.argv[1]), "ddp", 2, 1, ["memory", "partner", "run every 10"]).start(die_at=5)
