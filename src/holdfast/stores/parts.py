"""The names of files that are being written into a committed checkpoint, and whose writer may have died.

Several ranks of a node write into one checkpoint. Each name says who writes, so that nobody takes a file away
from a process that lives.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Collection
from dataclasses import replace

from holdfast.format.names import PART_FILE
from holdfast.stores.owner import Owner, is_alive, this_process

_PART = re.compile(r"part-([0-9a-f]{8})-([0-9]+)-([0-9]+)-[0-9a-f]{16}", re.ASCII)


def new_part() -> str:
    me = this_process("")
    return f"{PART_FILE}{_machine(me)}-{me.pid}-{max(me.start_ticks, 0)}-{os.urandom(8).hex()}"


def is_left_behind(name: str, being_written: Collection[str]) -> bool:
    """Whether nobody writes this part any more. One from another machine is left alone: nobody can know."""
    if not name.startswith(PART_FILE) or name in being_written:
        return False
    match = _PART.fullmatch(name)
    if match is None:
        return True
    me = this_process("")
    if match[1] != _machine(me):
        return False
    writer = replace(me, pid=int(match[2]), start_ticks=int(match[3]))
    return writer.pid == me.pid or is_alive(writer, me) is False


def _machine(me: Owner) -> str:
    return f"{zlib.crc32(f'{me.boot_id} {me.pid_namespace}'.encode()):08x}"
