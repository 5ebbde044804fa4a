"""A training that saves without end holds no more after an hour than after a few minutes."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

PROGRAM = Path(__file__).parent / "soak.py"
SECONDS = float(os.environ.get("HOLDFAST_SOAK", "3600" if os.environ.get("HOLDFAST_TORTURE") else "8"))


def test_memory_descriptors_threads_and_disk_stay_flat(counted: Callable[[str, int, str, int], None]) -> None:
    command = [sys.executable, str(PROGRAM), str(SECONDS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10 * SECONDS + 300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout)
    # Two tiers with two checkpoints each of 13 MB, and what is being written, copied and pruned.
    assert result["held"]["disk"] < 10 * 13e6
    assert result["saves"] > 5
    if SECONDS < 600:
        # So short a time says nothing of growth: one checkpoint more or less decides.
        return
    # A save that is under way at the second look may hold a descriptor or a thread more.
    few = {key: 2 / result["held"][key] for key in ("descriptors", "threads")}
    grown = {key: by for key, by in result["growth"].items() if by > max(0.05, few.get(key, 0.0))}
    assert grown == {}, result
    counted("seconds of soak", int(SECONDS), "memory, descriptors, threads or disk that grew by 5 %", 0)
