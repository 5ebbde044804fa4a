"""What training was handed, written down as it happens: one small record per batch, appended to the run's folder.

A record is in the kernel's hands before its batch is in training's, so a killed process leaves no batch
unrecorded. The log only grows; nothing here rewrites or removes a line.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.errors import StoreError

FOLDER = "audit"
MAGIC = b"HFAUDIT1"
FRAME = struct.Struct("<II")  # bytes that follow, their CRC-32
BATCH = struct.Struct("<BHQQQQIII")
KIND_FEED, KIND_BATCH, KIND_END = 1, 2, 3


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One batch (or, with `ended`, the end of a pass) as a feed handed it out.

    `served` counts all batches of this feed since the run began, as the surviving history has it: a restored
    feed counts on from its checkpoint, so what an earlier attempt served from that number on was undone.
    `size` is the number of items in the whole order; `dropped` how many of them nobody gets.
    """

    feed: str
    served: int
    epoch: int
    passes: int
    consumed: int
    indices: Sequence[Any] = ()
    padding: int = 0
    ended: bool = False
    size: int | None = None
    once_each: bool = False
    step: int = 0
