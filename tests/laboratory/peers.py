"""What others lose where holdfast is tested: the same kills, flipped bits, cut files and full disks for each.

    python peers.py 100 7        # so many trials of each kind, from this seed; prints one JSON line

Each peer is used as its documentation shows: `torch.save` over the last file, the same through a temporary
name and a rename, `safetensors.torch.save_file`, `torch.distributed.checkpoint.save` into one folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import select
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch import nn

import holdfast

TENSORS, ELEMENTS = 8, 20_000
State = dict[str, torch.Tensor]


def state_of(step: int) -> State:
    """Every element says which step it is of, so that a mixture shows."""
    return {f"layer{n}": torch.full((ELEMENTS,), float(step)) for n in range(TENSORS)}


@dataclass(frozen=True)
class Peer:
    """`saver(folder)` gives the function that saves one state; `load` gives a state, or raises."""

    name: str
    saver: Callable[[Path], Callable[[State], object]]
    load: Callable[[Path], State]


def _torch_save(folder: Path) -> Callable[[State], object]:
    return lambda state: torch.save(state, folder / "last.pt")


def _torch_save_and_rename(folder: Path) -> Callable[[State], object]:
    def save(state: State) -> None:
        torch.save(state, folder / "last.tmp")
        os.replace(folder / "last.tmp", folder / "last.pt")

    return save


def _safetensors(folder: Path) -> Callable[[State], object]:
    return lambda state: save_file(state, folder / "last.safetensors")


def _dcp(folder: Path) -> Callable[[State], object]:
    return lambda state: dcp.save(state, checkpoint_id=str(folder / "last"), no_dist=True)


def _load_dcp(folder: Path) -> State:
    state = state_of(-1)
    dcp.load(state, checkpoint_id=str(folder / "last"), no_dist=True)
    return state


class _Module(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name, tensor in state_of(0).items():
            self.register_parameter(name, nn.Parameter(tensor, requires_grad=False))


def _holdfast(folder: Path) -> Callable[[State], object]:
    model = _Module()
    run = holdfast.Run(folder / "run", every="1000000 steps", model=model).__enter__()

    def save(state: State) -> None:
        model.load_state_dict(state)
        run.save_now().wait()

    return save


PEERS = (
    Peer("torch.save", _torch_save, lambda folder: torch.load(folder / "last.pt")),
    Peer("torch.save + rename", _torch_save_and_rename, lambda folder: torch.load(folder / "last.pt")),
    Peer("safetensors", _safetensors, lambda folder: load_file(folder / "last.safetensors")),
    Peer("DCP", _dcp, _load_dcp),
    Peer("holdfast", _holdfast, lambda folder: holdfast.load_weights(folder / "run")),
)


def in_child(work: Callable[[int], None], kill_after: Callable[[int], bool]) -> list[int]:
    """Run `work` in a fork; it writes acknowledged steps to a pipe. Killed when `kill_after` says so."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os.close(read)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            work(write)
        os._exit(0)
    os.close(write)
    said = b""
    while True:
        ready, _, _ = select.select([read], [], [], 0.0005)
        data = os.read(read, 4096) if ready else None
        if data == b"":
            break
        said += data or b""
        if kill_after(said.count(b"\n")):
            os.kill(child, signal.SIGKILL)
            break
    os.waitpid(child, 0)
    with os.fdopen(read, "rb") as rest:
        said += rest.read()
    return [int(line) for line in said.decode().splitlines()]


def loaded_step(peer: Peer, folder: Path) -> float | None:
    """The step that a restart would go on from; None where nothing can be loaded; -1 for a mixture."""
    try:
        state = peer.load(folder)
    except BaseException:  # noqa: BLE001  DCP's own error is no Exception
        return None
    values = {float(v) for tensor in state.values() for v in tensor.unique()}
    return values.pop() if len(values) == 1 else -1.0


def kills(peer: Peer, trials: int, dice: random.Random) -> int:
    """How often the state acknowledged last, or any newer one, is gone after SIGKILL."""
    lost = 0
    for _ in range(trials):
        with tempfile.TemporaryDirectory() as name:
            folder, after, end = Path(name), dice.randrange(1, 6), [0.0]
            pause = dice.uniform(0.0, 0.02)

            def work(pipe: int, folder: Path = folder) -> None:
                save = peer.saver(folder)
                for step in range(1, 10_000):
                    save(state_of(step))
                    os.write(pipe, b"%d\n" % step)

            def is_time(count: int, after: int = after, pause: float = pause, end: list[float] = end) -> bool:
                if count >= after and not end[0]:
                    end[0] = time.monotonic() + pause
                return bool(end[0]) and time.monotonic() >= end[0]

            acknowledged = max(in_child(work, is_time), default=0)
            found = loaded_step(peer, folder)
            lost += found is None or found < acknowledged
    return lost


def silent(
    peer: Peer, trials: int, dice: random.Random, harm: Callable[[bytearray, random.Random], None]
) -> int:
    """How often a damaged checkpoint is loaded as if nothing were wrong, with other numbers."""
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        in_child(
            lambda pipe: (peer.saver(folder)(state_of(3)), os.write(pipe, b"1\n"))[0], lambda count: False
        )
        files = [one for one in folder.rglob("*") if one.is_file() and one.stat().st_size > 1000]
        for _ in range(trials):
            file = dice.choices(files, [one.stat().st_size for one in files])[0]
            right = file.read_bytes()
            data = bytearray(right)
            harm(data, dice)
            file.write_bytes(data)
            found = loaded_step(peer, folder)
            wrong += found is not None and found != 3.0
            file.write_bytes(right)
    return wrong


def flip(data: bytearray, dice: random.Random) -> None:
    data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)


def zero_a_page(data: bytearray, dice: random.Random) -> None:
    start = dice.randrange(len(data)) // 4096 * 4096
    data[start : start + 4096] = bytes(len(data[start : start + 4096]))


def full_disks(peer: Peer, trials: int, dice: random.Random) -> int:
    """How often nothing can be loaded any more after a save that the disk had no room for."""
    lost = 0
    for _ in range(trials):
        with tempfile.TemporaryDirectory() as name:
            folder, room = Path(name), dice.randrange(10_000, TENSORS * ELEMENTS * 4)

            def work(pipe: int, folder: Path = folder, room: int = room) -> None:
                save = peer.saver(folder)
                save(state_of(1))
                os.write(pipe, b"1\n")
                # What lies beyond is refused, as on a disk without room.
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
                save(state_of(2))

            in_child(work, lambda count: False)
            lost += loaded_step(peer, folder) not in (1.0, 2.0)
    return lost


def main(trials: int, seed: int) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rows = []
    for peer in PEERS:
        dice = random.Random(seed)
        rows.append(
            {
                "peer": peer.name,
                "killed while saving": kills(peer, trials, dice),
                "one bit flipped": silent(peer, trials, dice, flip),
                "one page of zeros": silent(peer, trials, dice, zero_a_page),
                "disk full": full_disks(peer, trials, dice),
            }
        )
    print(json.dumps({"trials": trials, "seed": seed, "rows": rows}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
