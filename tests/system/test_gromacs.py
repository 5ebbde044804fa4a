"""A real simulation, killed three times, ends as if left alone: every step done, no frame missing."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.checkpoints.find import committed
from holdfast.events import Restored
from holdfast.stores.journal import read_events
from holdfast.stores.place import CKPT
from holdfast.stores.store import CheckpointStore

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(
        shutil.which("gmx") is None, reason="needs gmx: apt-get install --no-install-recommends gromacs"
    ),
]
STEPS = 12000
EVERY = 100
TOPOLOGY = (
    '#include "oplsaa.ff/forcefield.itp"\n#include "oplsaa.ff/spce.itp"\n[ system ]\nwater\n[ molecules ]\n'
)
SETTINGS = f"""
integrator = md
dt = 0.002
nsteps = {STEPS}
nstlist = 10
cutoff-scheme = Verlet
rcoulomb = 0.9
rvdw = 0.9
coulombtype = PME
tcoupl = v-rescale
tc-grps = System
tau-t = 0.1
ref-t = 300
gen-vel = yes
gen-temp = 300
constraints = h-bonds
nstenergy = {EVERY}
nstlog = 500
nstxout-compressed = {EVERY}
"""


def gmx(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["gmx", "-quiet", *arguments], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def water(tmp_path: Path) -> Path:
    """A box of 348 water molecules, ready to run."""
    (tmp_path / "topol.top").write_text(TOPOLOGY)
    (tmp_path / "md.mdp").write_text(SETTINGS)
    gmx(
        tmp_path,
        "solvate",
        "-cs",
        "spc216.gro",
        "-box",
        "2.2",
        "2.2",
        "2.2",
        "-o",
        "conf.gro",
        "-p",
        "topol.top",
    )
    gmx(tmp_path, "grompp", "-f", "md.mdp", "-c", "conf.gro", "-p", "topol.top", "-o", "topol.tpr")
    return tmp_path


def start(folder: Path) -> subprocess.Popen[bytes]:
    # A checkpoint every 0.6 s; one thread, because tests share two cores.
    command = ["gmx", "-quiet", "mdrun", "-ntmpi", "1", "-ntomp", "1", "-s", "topol.tpr", "-cpt", "0.01"]
    with open(folder / "output", "ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "holdfast.cli.main", "app", "gromacs", "--run", "run", "--", *command],
            cwd=folder, stdout=output, stderr=output,
        )  # fmt: skip


def generations(folder: Path) -> list[str]:
    return [str(found.name) for found in committed(CheckpointStore(folder / "run"))]


def wait_for_generation(folder: Path, job: subprocess.Popen[bytes], after: str) -> str:
    end = time.monotonic() + 90
    while not (found := generations(folder)) or found[0] <= after:
        assert job.poll() is None, (folder / "output").read_text(errors="replace")
        assert time.monotonic() < end
        time.sleep(0.1)
    return found[0]


def simulation(folder: Path) -> int:
    """The pid of mdrun itself, which runs in `folder` and in a session of its own."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if words[0] == b"gmx" and os.readlink(entry / "cwd") == str(folder):
                    return int(entry.name)
            except OSError:
                continue
    raise AssertionError("no simulation is running")


def require_continuous(folder: Path, steps: int = STEPS, trajectory: str = "md.xtc") -> None:
    assert f"Statistics over {steps + 1} steps" in (folder / "md.log").read_text(errors="replace")
    said = gmx(folder, "check", "-f", trajectory)
    frames = re.search(r"^Step\s+(\d+)\s+(\S+)$", said, re.MULTILINE)
    assert frames is not None, said
    assert int(frames[1]) == steps // EVERY + 1, said
    assert "Timesteps at" not in said, "the distance between frames changes"


def test_a_simulation_killed_three_times_is_continuous(water: Path) -> None:
    job = start(water)
    newest = ""
    for _ in range(3):
        newest = wait_for_generation(water, job, newest)
        os.kill(simulation(water), signal.SIGKILL)
        # The next one is written by the next attempt.
    assert job.wait(240) == 0, (water / "output").read_text(errors="replace")
    assert sum(isinstance(event, Restored) for event in read_events(water / "run")) >= 3
    require_continuous(water)


def test_a_damaged_newest_checkpoint_falls_back_to_the_older(water: Path) -> None:
    job = start(water)
    wait_for_generation(water, job, wait_for_generation(water, job, ""))
    job.send_signal(signal.SIGTERM)
    assert job.wait(120) == 75, (water / "output").read_text(errors="replace")
    newest, older = generations(water)
    for damaged in (water / "run" / CKPT / newest / "file-0000", water / "md.cpt"):
        times = damaged.stat()
        data = bytearray(damaged.read_bytes())
        data[len(data) // 2] ^= 1
        damaged.write_bytes(data)
        os.utime(damaged, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert start(water).wait(240) == 0, (water / "output").read_text(errors="replace")
    restored = [event.name for event in read_events(water / "run") if isinstance(event, Restored)]
    assert restored[-1] == older
    require_continuous(water)
