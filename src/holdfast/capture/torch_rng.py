"""Every random stream that training may draw from: Python, NumPy, torch on the CPU and on accelerators.

Reading a state draws nothing. NumPy's and Python's are kept as packed bytes, not as 600 numbers.
"""

from __future__ import annotations

import hashlib
import logging
import random
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

log = logging.getLogger("holdfast")


class TrackedRandomness:
    key = "rng"
    role = "state"

    def take(self) -> dict[str, Any]:
        return self.hold()()

    def hold(self) -> Callable[[], dict[str, Any]]:
        """Read every state now, pack it later: turning Python's 625 numbers into bytes takes longer than
        reading all of them."""
        python, numpy = random.getstate(), np.random.get_state(legacy=False)
        cpu, accelerator = torch.get_rng_state(), _accelerator_states()
        return lambda: {
            "python": _pack_python(python),
            "numpy": _pack_numpy(numpy),
            "torch": cpu.numpy().tobytes(),
            "accelerator": accelerator,
        }

    def watch(self) -> Callable[[], bool]:
        """Random streams are never replaced, only drawn from."""
        return lambda: True

    def places_of_tensors(self) -> dict[int, tuple[dict[str, Any], str]]:
        """There are none: what is kept are bytes."""
        return {}

    def check(self, state: Any) -> None:
        """Another number of devices is no reason to refuse a training its state."""

    def apply(self, state: Any) -> None:
        random.setstate(_unpack_python(state["python"]))
        np.random.set_state(_unpack_numpy(state["numpy"]))
        torch.set_rng_state(_bytes_tensor(state["torch"]))
        saved: list[bytes] = state["accelerator"]
        visible = torch.accelerator.device_count() if torch.accelerator.is_available() else 0
        if saved and len(saved) != visible:
            log.warning(
                "holdfast: the checkpoint holds random streams of %d accelerators, and %d are visible here: "
                "those that exist go on where they were; what others draw differs from an uninterrupted run",
                len(saved),
                visible,
            )
        for index, packed in enumerate(saved[:visible]):
            _device_module().set_rng_state(_bytes_tensor(packed), index)


def begin_own_streams(salt: str) -> None:
    """New random streams for a rank that did not exist when the checkpoint was made: like no other rank's,
    and the same whenever that checkpoint is restored."""
    words = np.frombuffer(hashlib.sha256(salt.encode()).digest(), dtype=np.uint64)
    random.seed(int(words[0]))
    np.random.seed(words[1:2].view(np.uint32))
    torch.manual_seed(int(words[2] >> np.uint64(1)))


def _bytes_tensor(packed: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(packed), dtype=torch.uint8)


def _device_module() -> Any:
    return torch.get_device_module(torch.accelerator.current_accelerator())


def _accelerator_states() -> list[bytes]:
    if not torch.accelerator.is_available():
        return []
    module = _device_module()
    count = torch.accelerator.device_count()
    return [module.get_rng_state(i).cpu().numpy().tobytes() for i in range(count)]


def _pack_python(state: tuple[Any, ...]) -> tuple[int, bytes, float | None]:
    version, words, gauss = state
    return version, struct.pack(f"<{len(words)}I", *words), gauss


def _unpack_python(packed: tuple[int, bytes, float | None]) -> tuple[Any, ...]:
    version, words, gauss = packed
    return version, struct.unpack(f"<{len(words) // 4}I", words), gauss


def _pack_numpy(state: Any) -> dict[str, Any]:
    return {
        "kind": state["bit_generator"],
        "key": state["state"]["key"].tobytes(),
        "pos": int(state["state"]["pos"]),
        "has_gauss": int(state["has_gauss"]),
        "gauss": float(state["gauss"]),
    }


def _unpack_numpy(packed: dict[str, Any]) -> dict[str, Any]:
    return {
        "bit_generator": packed["kind"],
        "state": {"key": np.frombuffer(packed["key"], dtype=np.uint32), "pos": packed["pos"]},
        "has_gauss": packed["has_gauss"],
        "gauss": packed["gauss"],
    }
