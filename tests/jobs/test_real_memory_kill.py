"""A real kill for lack of memory, in a memory group of our own."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

GROUPS = Path("/sys/fs/cgroup/memory")


@pytest.fixture
def small_group() -> Iterator[Path]:
    group = GROUPS / f"holdfast-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text("200000000")
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip(f"no memory group of version 1 can be made: {error}")
    yield group
    group.rmdir()


@pytest.mark.system
def test_a_child_killed_for_memory_is_told_as_such(small_group: Path) -> None:
    supervisor = (
        f"echo $$ > {small_group}/cgroup.procs; exec {sys.executable} -m holdfast.cli.main run --json"
        f" --no-progress 1 -- {sys.executable} -S -c 'bytearray(10**9)'"
    )
    done = subprocess.run(["sh", "-c", supervisor], capture_output=True, text=True, timeout=120, check=False)
    ends = [event for event in json.loads(done.stdout)["events"] if event["event"] == "AttemptEnded"]
    assert [end["cause"] for end in ends] == ["out of memory"]
    assert "the job's memory group" in ends[0]["detail"]
