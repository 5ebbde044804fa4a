"""What the surroundings say about how often this job will be interrupted, before it ever was.

Every source is optional, quick and may be wrong: a hint narrows the belief, and the run's own failures
overrule it. Asked once, when a run opens, by the process that decides.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from holdfast.errors import SetupError
from holdfast.jobs.slurm import partition_preempts
from holdfast.jobs.spot_http import MetadataService
from holdfast.jobs.spot_machine import VARIABLE, Spot, cloud_of_this_machine
from holdfast.policy.belief import Hint

# Preemptible instances; published traces range from one preemption of a node in 0.7 h to one in 17 h.
SPOT_NODE_SECONDS = 4 * 3600.0
SPOT_WITHIN = 4.0
# A partition that may be preempted says that it can happen, not how often.
PREEMPTED_TRUST = 0.5
PREEMPTED_WITHIN = 6.0
_PREEMPTED_NAMES = ("preempt", "scaveng", "spot", "besteffort", "best-effort", "backfill")
# Where a pod finds its labels, if it mounts them (the downward API), and what its nodes' owners call spot.
POD_LABELS = Path("/etc/podinfo/labels")
_SPOT_LABELS = (
    'eks.amazonaws.com/capacityType="SPOT"', 'karpenter.sh/capacity-type="spot"',
    'cloud.google.com/gke-spot="true"', 'cloud.google.com/gke-preemptible="true"',
    'cloud.google.com/gke-provisioning="spot"', 'kubernetes.azure.com/scalesetpriority="spot"',
)  # fmt: skip
METADATA_SECONDS = 1.0


def what_is_known(
    nodes: int, spot: Spot, environ: Mapping[str, str], *, failures_seen: int = 0, labels: Path = POD_LABELS
) -> tuple[Hint, ...]:
    """Hints for the belief of a job on `nodes` nodes whose journal knows of `failures_seen`."""
    found = [_spot(nodes, spot, environ, labels), _preempted(environ), _restarts(environ, failures_seen)]
    return tuple(hint for hint in found if hint is not None)


def _spot(nodes: int, spot: Spot, environ: Mapping[str, str], labels: Path) -> Hint | None:
    """The user's word, a label of the pod, or the word of the cloud that this machine belongs to."""
    if isinstance(spot, str) and spot.partition("@")[0] in ("aws", "gcp", "azure"):
        return Hint(SPOT_NODE_SECONDS / nodes, f"spot machines of {spot}", within=SPOT_WITHIN)
    try:
        said = labels.read_text(errors="replace") if "KUBERNETES_SERVICE_HOST" in environ else ""
    except OSError:
        said = ""
    if any(label in said for label in _SPOT_LABELS):
        return Hint(SPOT_NODE_SECONDS / nodes, "the pod is on spot machines", within=SPOT_WITHIN)
    if spot not in (None, "auto") or environ.get(VARIABLE, "auto") != "auto":
        return None
    cloud = cloud_of_this_machine()
    if cloud is not None and is_spot(cloud):
        return Hint(SPOT_NODE_SECONDS / nodes, f"a spot machine of {cloud}", within=SPOT_WITHIN)
    return None


def is_spot(cloud: str, address: str | None = None) -> bool:
    """Whether the cloud calls this machine preemptible. No answer means no."""
    link_local = "169.254.169.254"
    try:
        if cloud == "aws":
            service = MetadataService(address or link_local, timeout=METADATA_SECONDS)
            lasts = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
            token = service.ask("/latest/api/token", lasts, method="PUT").body.strip()
            says = service.ask("/latest/meta-data/instance-life-cycle", {"X-aws-ec2-metadata-token": token})
        elif cloud == "gcp":
            service = MetadataService(address or "metadata.google.internal", timeout=METADATA_SECONDS)
            path = "/computeMetadata/v1/instance/scheduling/preemptible"
            says = service.ask(path, {"Metadata-Flavor": "Google"})
        else:
            service = MetadataService(address or link_local, timeout=METADATA_SECONDS)
            path = "/metadata/instance/compute/priority?api-version=2021-02-01&format=text"
            says = service.ask(path, {"Metadata": "true"})
    except OSError:
        return False
    return says.status == 200 and says.body.strip().lower() in ("spot", "true", "low")


def _preempted(environ: Mapping[str, str]) -> Hint | None:
    """A partition or quality of service of Slurm whose jobs others may push aside."""
    partition, quality = environ.get("SLURM_JOB_PARTITION", ""), environ.get("SLURM_JOB_QOS", "")
    if not environ.get("SLURM_JOB_ID"):
        return None
    for kind, name in (("QOS", quality), ("partition", partition)):
        if any(word in name.lower() for word in _PREEMPTED_NAMES):
            return _may_be_preempted(f"{kind} {name} can be preempted")
    if environ.get("SLURM_RESTART_COUNT", "0") not in ("", "0"):
        return _may_be_preempted(f"Slurm has requeued this job {environ['SLURM_RESTART_COUNT']} times")
    try:
        if partition and partition_preempts(partition):
            return _may_be_preempted(f"partition {partition} can be preempted")
    except SetupError:
        pass  # Slurm does not answer: then this is not known
    return None


def _may_be_preempted(why: str) -> Hint:
    return Hint(SPOT_NODE_SECONDS, why, trust=PREEMPTED_TRUST, within=PREEMPTED_WITHIN)


def _restarts(environ: Mapping[str, str], failures_seen: int) -> Hint | None:
    """Starts that the journal knows nothing of: processes that died before they could write to it."""
    for who, variable in (("torchrun", "TORCHELASTIC_RESTART_COUNT"), ("the supervisor", "HOLDFAST_ATTEMPT")):
        said = environ.get(variable, "")
        restarts = int(said) if said.isascii() and said.isdecimal() else 0
        age = _age_of(os.getppid())
        if restarts > failures_seen and age is not None:
            why = f"{who} has restarted this {restarts} times"
            return Hint(max(age / restarts, 1.0), why, within=SPOT_WITHIN)
    return None


def _age_of(pid: int) -> float | None:
    """Seconds since that process began; None where /proc cannot say."""
    try:
        # The name of the program is in brackets and may hold spaces and brackets itself.
        ticks = float(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None
    return max(time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"), 0.0)
