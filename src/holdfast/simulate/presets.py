"""Failure rates that were published, with their sources. Numbers to plan with before there are own ones."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.errors import SetupError

DAY = 86400.0


@dataclass(frozen=True)
class Preset:
    """Failures that end a job, per 1000 days of a node (8 GPUs unless said) being up."""

    name: str
    per_1000_node_days: float
    source: str

    @property
    def node_mtbf(self) -> float:
        """Mean seconds between failures of one node."""
        return 1000 * DAY / self.per_1000_node_days


PRESETS = {
    preset.name: preset
    for preset in (
        Preset(
            "llama3-405b",
            3.8,
            "Llama 3 405B on 16,384 H100 for 54 days: 419 unexpected interruptions (arXiv 2407.21783)",
        ),
        Preset("meta-rsc1", 6.5, "Meta RSC-1, hardware failures over 11 months (arXiv 2410.21680)"),
        Preset(
            "meta-rsc1-all",
            22.0,
            "Meta RSC-1, failures of any cause: 21 to 24 by job size (arXiv 2410.21680)",
        ),
        Preset("opt-175b", 14.0, "OPT-175B on 1,024 A100: about 90 restarts in 56 days (metaseq chronicles)"),
        Preset("infinitehbd", 3.8, "StepFun, 400 GPU nodes for 348 days: 584 faults (InfiniteHBD-Trace)"),
        Preset(
            "byterobust",
            22.0,
            "ByteDance, 778,135 jobs in 3 months, manual stops included (arXiv 2509.16293)",
        ),
        Preset("lanl", 3.3, "LANL clusters of 512 to 1,024 CPU nodes, 1996 to 2005 (LA-UR-05-7318)"),
        Preset("titan", 1.4, "Titan, 18,688 GPUs, 2014 to 2019, per 8 GPUs (TitanGPULife)"),
        Preset(
            "spot",
            6000.0,
            "preemptible instances, one preemption per node in 4 h (SkyPilot traces: 0.7 to 17 h)",
        ),
    )
}


def preset(name: str) -> Preset:
    try:
        return PRESETS[name]
    except KeyError:
        raise SetupError(f"there is no preset {name!r}", hint=f"use one of {', '.join(PRESETS)}") from None
