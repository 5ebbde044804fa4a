"""kill -9 at random instants while slots are written: what was sealed last is always there, never torn."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

WRITER = Path(__file__).parent / "memory_writer.py"
KILLS = 500 if os.environ.get("HOLDFAST_TORTURE") else 30


def test_what_was_sealed_last_survives_every_kill(shm: str) -> None:
    seed = int(os.environ.get("HOLDFAST_SEED", random.SystemRandom().randrange(1 << 30)))
    done = subprocess.run(
        [sys.executable, str(WRITER), shm, str(KILLS), str(seed)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout)
    assert result["problems"] == [], f"repeat with HOLDFAST_SEED={seed}"
    assert result["kills"] == KILLS
    assert result["saves"] > KILLS, "it did write between the kills"


def test_the_campaign_would_notice_a_seal_that_is_not_taken_away(shm: str) -> None:
    code = (
        "import runpy, sys\n"
        "from holdfast.tiers.memory_slot import MemorySlot\n"
        "real = MemorySlot.seal\n"
        "def seal(self, name, manifest):\n"
        "    MemorySlot.really_unseal(self)\n"
        "    real(self, name, manifest)\n"
        "MemorySlot.really_unseal, MemorySlot.unseal = MemorySlot.unseal, lambda self: None\n"
        "MemorySlot.seal = seal\n"
        "import holdfast.tiers.memory as memory\n"
        "old = memory.MemoryTier.write\n"
        "def write(self, name, source):\n"
        "    place = self._slot_staged_in(source)\n"
        "    self._places[name] = place\n"
        "    return memory._digested(source, source.size)\n"
        "memory.MemoryTier.write = write\n"
        f"sys.argv = ['x', {shm!r}, '20', '5']\n"
        f"runpy.run_path({str(WRITER)!r}, run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["problems"] != []
