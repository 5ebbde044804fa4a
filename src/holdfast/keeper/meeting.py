"""Where keepers find each other: a folder on a file system that all nodes see, and that no node takes along.

    token                 known to keepers only; both ends of every connection prove that they know it
    keepers/00000004.json who is there; the lowest that lives leads
    worlds/00000002.json  the generations; a number can be made once, so two leaders cannot both go on
    leads-00000000        the leader's pulse: a number that grows while it leads

Everything else is said over TCP. But for the pulse, nothing here is changed, only added and removed.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import re
from typing import Any

from holdfast.errors import CorruptCheckpoint, StoreNotFound
from holdfast.format.sealed import canonical_json, seal, unseal
from holdfast.keeper.world import Card, World
from holdfast.stores.durable_write import write_small
from holdfast.stores.folder_records import Folders
from holdfast.stores.io import StoreIO
from holdfast.stores.os_errors import store_errors
from holdfast.stores.ownership import make_private
from holdfast.stores.posix import PosixIO
from holdfast.stores.shared_secret import agree_on_secret
from holdfast.stores.stored_file import read_small

TOKEN, KEEPERS, WORLDS = "token", "keepers", "worlds"
_MAX_BYTES = 1 << 20
_PULSE = "leads-"
_PULSE_FILE = re.compile(r"leads-([0-9]{8})", re.ASCII)
_RECORD = re.compile(r"([0-9]{8})\.json", re.ASCII)


class Meeting:
    """One process's view of the folder."""

    def __init__(self, folder: str, *, io: StoreIO | None = None) -> None:
        self.folder = os.path.abspath(folder)
        self._io: StoreIO = io if io is not None else PosixIO()
        self._folders = Folders(self._io, self.folder)
        with store_errors("meet other keepers", self.folder):
            os.makedirs(os.path.dirname(self.folder), exist_ok=True)
            make_private(self.folder)
            with self._folders.root(create=True) as root:
                for name in (KEEPERS, WORLDS):
                    with contextlib.suppress(FileExistsError):
                        self._io.make_directory(root, name)
                self._io.fsync_directory(root)
            self.token = agree_on_secret(os.path.join(self.folder, TOKEN))

    # ---- keepers

    def register(self, address: str, port: int, host: str) -> Card:
        with self._folders.inside(KEEPERS, doing="register this keeper") as keepers:
            # Numbers of those who left count too, where a world remembers them.
            newest = self.newest_world()
            used = [*newest.keepers, *newest.lost] if newest is not None else []
            number = max([*self._numbers(keepers), *used], default=-1) + 1
            while True:
                card = Card(number, address, port, host)
                record = {**vars(card), "boot": _boot_id()}
                try:
                    write_small(
                        self._io, keepers, _file(number), seal({**record, "proof": self._proof(record)})
                    )
                except FileExistsError:
                    number += 1
                    continue
                self._io.fsync_directory(keepers)
                return card

    def unregister(self, number: int) -> None:
        with contextlib.suppress(StoreNotFound):
            with self._folders.inside(KEEPERS, doing="unregister a keeper") as keepers:
                self._io.unlink(keepers, _file(number))

    def registered(self) -> list[Card]:
        """Lowest first. A record that is being written, or is nobody's of this job, is passed over."""
        found = []
        with self._folders.inside(KEEPERS, doing="look for keepers") as keepers:
            for number in self._numbers(keepers):
                record = self._read(keepers, number)
                if record is None:
                    continue
                proof = record.pop("proof", "")
                if hmac.compare_digest(str(proof), self._proof(record)):
                    found.append(
                        Card(number, str(record["address"]), int(record["port"]), str(record["host"]))
                    )
        return found

    # ---- who leads

    def write_pulse(self, number: int, count: int) -> None:
        path = os.path.join(self.folder, f"{_PULSE}{number:08d}")
        with store_errors("show that this keeper leads", self.folder):
            # Opened and closed each time: only then do other clients of a network file system see it.
            with open(path, "wb") as file:
                file.write(b"%020d" % count)

    def pulses(self) -> dict[int, int]:
        """The last number that each leader wrote, of those that ended in disorder too."""
        found = {}
        with self._folders.inside(doing="look for a leader") as root:
            for name in self._io.list_names(root):
                match = _PULSE_FILE.fullmatch(name)
                if match is not None:
                    with contextlib.suppress(FileNotFoundError, CorruptCheckpoint):
                        # Empty or cut short: it is being written this moment, which is all we ask.
                        text = read_small(self._io, root, name, 64)
                        found[int(match[1])] = int(text) if text.isdigit() else -1
        return found

    def remove_pulse(self, number: int) -> None:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self.folder, f"{_PULSE}{number:08d}"))

    # ---- worlds

    def newest_world(self) -> World | None:
        with self._folders.inside(WORLDS, doing="read the newest generation") as worlds:
            for number in reversed(self._numbers(worlds)):
                record = self._read(worlds, number)
                if record is not None:
                    with contextlib.suppress(CorruptCheckpoint):
                        return World.from_json(record)
        return None

    def newest_generation(self) -> int:
        with self._folders.inside(WORLDS, doing="look for a newer generation") as worlds:
            return max(self._numbers(worlds), default=0)

    def found(self, world: World) -> bool:
        """Make this generation the newest, durably. False if somebody else has made it."""
        with self._folders.inside(WORLDS, doing="found a generation") as worlds:
            try:
                write_small(self._io, worlds, _file(world.generation), seal(world.to_json()))
            except FileExistsError:
                return False
            self._io.fsync_directory(worlds)
            return True

    # ---- how

    def _numbers(self, directory: int) -> list[int]:
        matches = (_RECORD.fullmatch(name) for name in self._io.list_names(directory))
        return sorted(int(match[1]) for match in matches if match)

    def _read(self, directory: int, number: int) -> dict[str, Any] | None:
        try:
            return unseal(read_small(self._io, directory, _file(number), _MAX_BYTES))
        except (CorruptCheckpoint, FileNotFoundError):
            return None

    def _proof(self, record: dict[str, Any]) -> str:
        return hmac.new(self.token, b"keeper\0" + canonical_json(record), "sha256").hexdigest()


def _file(number: int) -> str:
    return f"{number:08d}.json"


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""
