"""Features composed into scripts that nobody wrote: the same losses without holdfast, with it, and killed."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parent / "composed_scripts.py"
EXAMPLES = 500 if os.environ.get("HOLDFAST_TORTURE") else 5


def test_composed_scripts_compute_the_same_without_with_and_killed(work: Path, seed: int) -> None:
    command = [sys.executable, str(PROGRAM), str(work), str(EXAMPLES), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3000, check=False)
    assert done.returncode == 0, f"repeat with HOLDFAST_SEED={seed}\n{done.stderr[-6000:]}"
