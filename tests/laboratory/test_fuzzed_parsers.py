"""No parser of ours crashes, or takes more than 64 MB, whatever it is given."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

PROGRAM = Path(__file__).parent / "fuzzed_parsers.py"
INPUTS = int(os.environ.get("HOLDFAST_INPUTS", "1000000" if os.environ.get("HOLDFAST_TORTURE") else "15000"))


def test_no_fuzzed_input_crashes_a_parser_or_takes_much_memory(
    counted: Callable[[str, int, str, int], None],
) -> None:
    seed = int(os.environ.get("HOLDFAST_SEED", random.SystemRandom().randrange(1 << 30)))
    command = [sys.executable, str(PROGRAM), str(INPUTS), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout)
    assert result["found"] == [], f"repeat with HOLDFAST_SEED={seed}"
    assert result["inputs"] == INPUTS
    assert min(result["parsers"].values()) > INPUTS / 50
    counted("fuzzed inputs", INPUTS, "crashes or more than 64 MB", 0)
