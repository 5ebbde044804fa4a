"""SIGKILL at random instants: every restart resumes, and the run that comes out is the uninterrupted one."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

TRAINER = Path(__file__).parent / "trainer_under_fire.py"
KILLS = int(os.environ.get("HOLDFAST_KILLS", "10000" if os.environ.get("HOLDFAST_TORTURE") else "30"))


def test_a_run_that_is_killed_again_and_again_is_the_uninterrupted_run(
    tmp_path: Path, counted: Callable[[str, int, str, int], None]
) -> None:
    seed = int(os.environ.get("HOLDFAST_SEED", random.SystemRandom().randrange(1 << 30)))
    command = [sys.executable, str(TRAINER), str(tmp_path), str(KILLS), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600 + 5 * KILLS, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    print(result)
    assert result["problems"] == [], f"repeat with HOLDFAST_SEED={seed}"
    assert result["kills"] >= KILLS
    counted("SIGKILLs of a training, over all stages and tiers", result["kills"], "lost or not bit-exact", 0)
    if KILLS >= 200:
        assert set(result["phases"]) >= {"compute", "copy", "write", "commit", "prune", "restore"}


@pytest.mark.parametrize("seed", [1])
def test_the_comparison_would_notice_a_lost_bit(tmp_path: Path, seed: int) -> None:
    """The same campaign with a restore that forgets one BatchNorm buffer must fail."""
    code = (
        "import runpy, sys\n"
        "import holdfast.capture.torch_module as m\n"
        "real = m.TrackedModule.apply\n"
        "def forgetful(self, state):\n"
        "    kept = self.module.norm.running_var.clone()\n"
        "    real(self, state)\n"
        "    self.module.norm.running_var.copy_(kept)\n"
        "m.TrackedModule.apply = forgetful\n"
        f"sys.argv = ['x', {str(tmp_path)!r}, '12', '{seed}']\n"
        f"runpy.run_path({str(TRAINER)!r}, run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    problems = json.loads(done.stdout.splitlines()[-1])["problems"]
    assert any("differs" in problem or "did not end as" in problem for problem in problems)
