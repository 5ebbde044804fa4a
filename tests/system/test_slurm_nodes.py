"""A keeper on every node of a real Slurm job: nodes are lost with their disks, until too few are left."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_cluster import SlurmCluster, why_not

ROOT = Path(__file__).parents[2]
TRAINING = ROOT / "benchmarks" / "hot_restart_training.py"
EPOCHS = 5
# The first is replaced by the spare. The second takes the leader along, rank 0, and the last hope.
ERRORS = {"1": "node001", "3": "node000"}
# As docs/keeper.md has it. All nodes are one machine here, so each is given a disk of its own.
SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=3 --ntasks-per-node=1 --time=5
#SBATCH --no-kill
#SBATCH --requeue --open-mode=append
srun --no-kill --kill-on-bad-exit=0 --wait=0 bash -c '
    export NODE_DIR={base}/disk-$SLURMD_NODENAME
    exec holdfast run --nodes auto --spares 1 --run {base}/run --output "{base}/{{attempt}}-{{rank}}.txt" \
        -- {python} {training} {base} {epochs}'
code=$?
echo "srun ended with $code"
exec holdfast slurm hand-over {base}/run --requeue --code $code
"""

pytestmark = [pytest.mark.system, pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    cluster = SlurmCluster(tmp_path_factory.mktemp("slurm-nodes") / "cluster")
    cluster.environment["PATH"] = f"{Path(sys.executable).parent}:{cluster.environment['PATH']}"
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def losses(base: Path) -> dict[int, set[str]]:
    """Every value that was ever written for an epoch: some epochs are trained twice."""
    found: dict[int, set[str]] = {}
    for line in (base / "losses").read_text().splitlines():
        epoch, value, _ = line.split()
        found.setdefault(int(epoch), set()).add(value)
    return found


def undisturbed(base: Path) -> dict[int, set[str]]:
    base.mkdir()
    request = {"base": str(base), "world": 2, "epochs": EPOCHS, "environ": {}}
    done = subprocess.run(
        [sys.executable, str(TRAINING.with_name("hot_restart_ranks.py"))], input=json.dumps(request) + "\n",
        stdout=subprocess.PIPE, text=True, timeout=120, check=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
    )  # fmt: skip
    assert json.loads(done.stdout) == [0, 0]
    return losses(base)


def test_a_spare_replaces_a_lost_node_then_91_requeues_the_job_and_it_ends_bit_for_bit(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    expected = undisturbed(tmp_path / "undisturbed")
    tiers = ["$NODE_DIR/cache", "xor:2", "run every 100"]
    cluster.environment |= {"TIERS": json.dumps(tiers), "ERRORS": json.dumps(ERRORS), "KEPT": "1"}
    script, log = tmp_path / "job.sbatch", tmp_path / "log"
    script.write_text(SCRIPT.format(base=tmp_path, python=sys.executable, training=TRAINING, epochs=EPOCHS))
    job = cluster.submit(f"--output={log}", str(script))
    states = cluster.wait_for_end(job, 180)
    said = log.read_text()
    assert set(states.values()) == {"COMPLETED"}, said
    first, second = said.split("srun ended with", 1)
    # The spare in place of the one, nobody in place of the other.
    assert "node001 is " in first
    assert "exit code 91: 1 nodes are left of the 2 that are needed" in first
    assert "goes back into the queue" in second
    resumed = [json.loads(line) for line in (tmp_path / "resumed").read_text().splitlines()]
    flushed = re.search(r"(\S+) was only on the nodes and is in", first)
    assert flushed is not None, first
    assert f"-s{resumed[1]['step']:012d}-" in flushed[1]
    assert sorted(expected) == list(range(EPOCHS))
    assert all(len(values) == 1 for values in expected.values())
    assert losses(tmp_path) == expected
