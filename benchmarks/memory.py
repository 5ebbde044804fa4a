"""Host memory that saving and restoring take beyond what training needs by itself.

Each contender runs in a process of its own, and the kernel's own high-water mark is what counts: no
sampling can miss a peak.
"""

from __future__ import annotations

import ctypes
import gc
import json
import subprocess
import sys
from pathlib import Path

from contenders import (
    CONTENDERS,
    Contender,
    DcpAsync,
    DcpAsyncStaged,
    Holdfast,
    TorchCheckpointing,
    TorchSaveSynced,
)
from options import parse_options, scratch
from scoreboard import Scoreboard
from workload import Training, gpt_training

MEASURED = (TorchSaveSynced, DcpAsync, DcpAsyncStaged, TorchCheckpointing, Holdfast)
LIMIT_SECONDS = 900


def status(field: str, pid: int | str = "self") -> int:
    """A field of /proc/PID/status in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def restart_high_water_mark() -> None:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # freed heap that was kept would hide part of the next peak
    Path("/proc/self/clear_refs").write_text("5")


def helpers_private_bytes() -> int:
    """Unshared memory of processes that the contender started."""
    total = 0
    for task in Path("/proc/self/task").iterdir():
        for pid in (task / "children").read_text().split():
            total += status("RssAnon", pid)
    return total


def iterate(training: Training, contender: Contender) -> None:
    training.forward_backward()
    contender.step()
    training.optimizer.zero_grad()


def save_peaks(training: Training, contender: Contender, repeats: int) -> list[float]:
    restart_high_water_mark()
    for _ in range(2):
        iterate(training, contender)
    without = status("VmHWM")
    peaks = []
    for number in range(repeats):
        restart_high_water_mark()
        helpers = 0
        # Two in a row: the second is taken while the first may still be on its way to the disk.
        for save in range(2):
            contender.save(2 * number + save + 1)
            iterate(training, contender)
            helpers = max(helpers, helpers_private_bytes())
        contender.finish()
        peaks.append(float(status("VmHWM") - without + helpers))
        if number < repeats - 1:
            contender.clear()
    return peaks


def load_peaks(contender: Contender, repeats: int) -> list[float]:
    peaks = []
    for _ in range(repeats):
        restart_high_water_mark()
        before = status("VmRSS")
        contender.load()
        peaks.append(float(status("VmHWM") - before))
    return peaks


def child(name: str, folder: Path, repeats: int, quick: bool) -> None:
    training = gpt_training(quick, batch=1)
    kind = next(kind for kind in CONTENDERS if kind.name == name)
    contender = kind(training, folder)
    saves = save_peaks(training, contender, repeats)
    loads = load_peaks(contender, repeats)
    contender.close()
    print(json.dumps({"state": training.state_bytes, "saves": saves, "loads": loads}))


def main() -> None:
    options = parse_options(__doc__, repeats=5)
    found = {}
    with scratch(options) as folder:
        for number, kind in enumerate(MEASURED):
            arguments = [kind.name, str(folder / f"{number}"), str(options.repeats), str(int(options.quick))]
            process = subprocess.run(
                [sys.executable, "-W", "ignore", __file__, "--child", *arguments],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
                timeout=LIMIT_SECONDS,
            )
            found[kind.name] = json.loads(process.stdout.splitlines()[-1])
    state = found[Holdfast.name]["state"]
    board = Scoreboard("memory", f"Host memory beyond training's own, state of {state / 1e9:.2f} GB", options)
    for name, peaks in found.items():
        board.add(name, "peak during saves", "B", peaks["saves"])
        board.add(name, "peak during restore", "B", peaks["loads"])
    board.at_most("saves need", board.median(Holdfast.name, "peak during saves"), 2 * state + 100e6, "B")
    board.at_most("a restore needs", board.median(Holdfast.name, "peak during restore"), state + 200e6, "B")
    board.finish()


if __name__ == "__main__":
    # Also guards against helpers that a contender starts by importing this file again.
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]), bool(int(sys.argv[5])))
    else:
        main()
