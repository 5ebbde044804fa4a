"""How many processes the launcher started, as its environment tells: torchrun, mpirun, srun."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Set to 1 by who starts several trainings side by side, each a run of its own.
ALONE = "HOLDFAST_ALONE"

# The innermost launcher first: torchrun under srun sets its own. SLURM_NTASKS is no sign, for a batch script
# has it too; SLURM_STEP_NUM_TASKS is set by srun alone.
_LAUNCHERS = (
    ("WORLD_SIZE", "RANK"),
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("PMI_SIZE", "PMI_RANK"),
    ("MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
)


@dataclass(frozen=True)
class Launched:
    """One of `world` processes; `variable` is what says so."""

    world: int
    rank: int | None
    variable: str


def launched(environ: Mapping[str, str]) -> Launched | None:
    """None where no launcher says anything, or where each process trains for itself."""
    if environ.get(ALONE) == "1":
        return None
    for world, rank in _LAUNCHERS:
        count = _number(environ.get(world))
        if count is not None:
            return Launched(count, _number(environ.get(rank)), world)
    return None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None
