"""Programs that nobody can change, and jobs that get nowhere, on a real Slurm. Side by side, one on a node.

This cluster tracks processes by their parents (proctrack/linuxproc), so that a warning reaches every process
of a step, the program itself included.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from slurm_cluster import SlurmCluster, why_not
from test_gromacs import SETTINGS, TOPOLOGY, gmx, require_continuous

from holdfast.events import HandedOver, RunEnded
from holdfast.stores.journal import read_events

HERE = Path(__file__).parent
HOLDFAST = Path(sys.executable).parent / "holdfast"
TASKS = 8

pytestmark = [pytest.mark.system, pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]
needs_gromacs = pytest.mark.skipif(shutil.which("gmx") is None, reason="needs gmx")

# Adds numbers, and writes its state over the old one with a pause in the middle. It knows no signal.
CARELESS = """
import os, sys, time
count = total = 0
if "--resume" in sys.argv:
    with open("state") as file:
        text = file.read()
    count, total = int(text[:8]), int(text[8:] or "0")
while count < 260:
    count, total = count + 1, total + count + 1
    time.sleep(0.3)
    with open("state", "w") as file:
        file.write(f"{count:08d}")
        file.flush()
        time.sleep(0.1)
        file.write(f"{total:016d}")
with open("result", "w") as file:
    file.write(str(total))
"""


@dataclass
class Programs:
    cluster: SlurmCluster
    folder: Path
    ids: dict[str, str]

    def submit(self, name: str, node: str, script: str, *options: str) -> None:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        (folder / "job.sh").write_text(script)
        command = [
            str(HOLDFAST), "slurm", "job.sh", "--run", "run", "--name", name, "--time", "1",
            "--warning", "20", "--array", str(TASKS), f"--sbatch=--nodelist={node}", *options,
        ]  # fmt: skip
        done = subprocess.run(
            command, cwd=folder, env=self.cluster.environment, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        self.ids[name] = self.cluster.submit("--chdir", str(folder), str(folder / "job.sbatch"))

    def logs(self, name: str) -> str:
        files = sorted((self.folder / name / "run" / "slurm").glob("*.log"))
        return "\n".join(f"--- {file.name}\n{file.read_text(errors='replace')}" for file in files)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    folder = tmp_path_factory.mktemp("programs")
    cluster = SlurmCluster(folder / "cluster")
    try:
        cluster.start()
        programs = Programs(cluster, folder, {})
        programs.submit("barren", "n1", "exec sleep 1000\n")
        (folder / "careless").mkdir()
        (folder / "careless" / "program.py").write_text(CARELESS)
        programs.submit(
            "careless", "n2",
            f"exec holdfast app generic --run run --file state --restart=--resume --complete-file result "
            f"-- {sys.executable} program.py\n",
        )  # fmt: skip
        if shutil.which("gmx"):
            water(folder / "water")
            # The guide's own command, changed by the words in front of it.
            programs.submit(
                "water", "n3",
                "exec holdfast app gromacs --run run -- "
                "gmx -quiet mdrun -ntmpi 1 -ntomp 1 -s topol.tpr -cpi state -cpt 0.05\n",
            )  # fmt: skip
        yield programs
    finally:
        cluster.stop()


def water(folder: Path) -> None:
    folder.mkdir()
    (folder / "topol.top").write_text(TOPOLOGY)
    # Longer than in test_gromacs, so that it needs several limits.
    (folder / "md.mdp").write_text(SETTINGS.replace("nsteps = 12000", "nsteps = 20000"))
    box = ["-box", "2.2", "2.2", "2.2"]
    gmx(folder, "solvate", "-cs", "spc216.gro", *box, "-o", "conf.gro", "-p", "topol.top")
    gmx(folder, "grompp", "-f", "md.mdp", "-c", "conf.gro", "-p", "topol.top", "-o", "topol.tpr")


def test_jobs_that_never_save_anything_end_after_three(programs: Programs) -> None:
    states = programs.cluster.wait_for_end(programs.ids["barren"], 420)
    # Slurm shows the tasks that never began as one.
    assert sorted(states.values()) == ["CANCELLED", "COMPLETED", "COMPLETED", "FAILED"], states
    ends = [
        event for event in read_events(programs.folder / "barren" / "run") if isinstance(event, HandedOver)
    ]
    assert [event.exit_code for event in ends] == [0, 0, 93]
    assert "3 jobs in a row made no new checkpoint" in programs.logs("barren")
    assert "with a checkpoint" not in programs.logs("barren")


def test_a_careless_program_ends_right_across_time_limits(programs: Programs) -> None:
    states = programs.cluster.wait_for_end(programs.ids["careless"], 420)
    assert set(states.values()) == {"COMPLETED"}, programs.logs("careless")
    assert (programs.folder / "careless" / "result").read_text() == str(260 * 261 // 2)
    ends = [
        event.how
        for event in read_events(programs.folder / "careless" / "run")
        if isinstance(event, RunEnded)
    ]
    assert ends.count("stopped") >= 2, "it fitted into fewer than three limits"


@needs_gromacs
def test_the_guides_own_command_of_gromacs_ends_across_time_limits(programs: Programs) -> None:
    states = programs.cluster.wait_for_end(programs.ids["water"], 420)
    assert set(states.values()) == {"COMPLETED"}, programs.logs("water")
    require_continuous(programs.folder / "water", steps=20000, trajectory="traj_comp.xtc")
