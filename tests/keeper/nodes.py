"""Several nodes on one machine: keepers with an address each, workers that wait for the test's word."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import selectors
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

HERE = Path(__file__).parent
LIMIT = 30.0
QUICK: dict[str, Any] = {
    "beat_seconds": 0.2,
    "silence_seconds": 3.0,
    "join_seconds": LIMIT,
    "spare_seconds": LIMIT,
    "kill_grace": 0.0,
    "grace": LIMIT,
}


@dataclass
class Worker:
    """One worker of one generation, and the wire on which it waits for a word."""

    pid: int
    environ: dict[str, str]
    wire: socket.socket

    @property
    def rank(self) -> int:
        return int(self.environ["RANK"])

    @property
    def node(self) -> str:
        return self.environ["HOLDFAST_NODE"]

    @property
    def address(self) -> str:
        return self.environ["HOLDFAST_ADDRESS"]

    def order(self, *words: object) -> None:
        self.wire.sendall(" ".join(map(str, words)).encode() + b"\n")

    def next_line(self) -> str:
        self.wire.settimeout(LIMIT)
        return self.wire.recv(64).decode().strip()

    def beat(self, run: Path, why: str = "") -> None:
        self.order("beat", run, why)
        assert self.next_line() == "done"

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def wait_gone(self) -> None:
        """The kernel closes its end of the wire when it dies."""
        self.wire.settimeout(LIMIT)
        with contextlib.suppress(ConnectionResetError):
            while self.wire.recv(4096):
                pass


class Director:
    """Where workers report."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "director")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen(64)
        self._listener.settimeout(LIMIT)
        self.workers: list[Worker] = []

    def expect(self, count: int) -> list[Worker]:
        """The next `count` workers, by rank."""
        came = []
        for _ in range(count):
            wire, _ = self._listener.accept()
            said = json.loads(wire.makefile().readline())
            came.append(Worker(said["pid"], said["environ"], wire))
        self.workers += came
        return sorted(came, key=lambda worker: worker.rank)

    def expect_nobody(self) -> None:
        """Nobody waits at the door."""
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._listener, selectors.EVENT_READ)
            assert not waiting.select(0)

    def close(self) -> None:
        for worker in self.workers:
            worker.wire.close()
        self._listener.close()


class Host:
    """The process that forks keepers. One for a whole test module: it holds nothing."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "keeper_host.py")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self._ends: dict[str, queue.SimpleQueue[int]] = {}
        self._pids: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if "started" in said:
                self._pids.put(said["pid"])
            else:
                self._ends[said["ended"]].put(said["code"])

    def start(self, name: str, request: dict[str, Any]) -> int:
        assert self._process.stdin is not None
        self._ends[name] = queue.SimpleQueue()
        self._process.stdin.write(json.dumps({"name": name, **request}) + "\n")
        self._process.stdin.flush()
        return self._pids.get(timeout=LIMIT)

    def end_of(self, name: str, limit: float = LIMIT) -> int:
        return self._ends[name].get(timeout=limit)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(LIMIT)
        self._reader.join(LIMIT)
        self._process.stdout.close()


class Nodes:
    """Keepers of one job. Whatever is left of them is killed at the end."""

    def __init__(self, host: Host, folder: Path, **settings: Any) -> None:
        self.host = host
        self.folder = folder
        self.director = Director(folder)
        self.settings = {**QUICK, "meet": str(folder / "meet"), **settings}
        self.pids: dict[int, int] = {}
        self._job = f"{folder}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for pid in self.pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
                os.kill(pid, signal.SIGKILL)
        self.director.close()

    def address(self, index: int) -> str:
        return f"127.0.0.{10 + index}"

    def start(
        self,
        *indices: int,
        command: list[str] | None = None,
        environ: dict[str, str] | None = None,
        **settings: Any,
    ) -> None:
        """Keepers on these nodes, in this order: each has registered before the next one starts."""
        for index in indices:
            registered = self.registered()
            self.pids[index] = self.host.start(
                f"{self._job}/{index}",
                {
                    "command": command or [sys.executable, "-S", "-E", str(HERE / "obedient_worker.py")],
                    "settings": {**self.settings, "address": self.address(index), **settings},
                    "environ": {
                        "DIRECTOR": self.director.path,
                        "NODE_DIR": str(self.folder / f"disk{index}"),
                        **(environ or {}),
                    },
                    "log": str(self.folder / f"keeper{index}"),
                },
            )
            wait_until(lambda before=registered: self.registered() > before)

    def registered(self) -> int:
        with contextlib.suppress(FileNotFoundError):
            return len(list((self.folder / "meet" / "keepers").iterdir()))
        return 0

    def wait_pulses(self, count: int) -> None:
        """Until the leader has written its pulse so many times more."""

        def pulse() -> int:
            [path] = (self.folder / "meet").glob("leads-*")
            return int(path.read_bytes() or b"0")

        end = pulse() + count
        wait_until(lambda: pulse() >= end)

    def kill(self, index: int, number: int = signal.SIGKILL) -> None:
        os.kill(self.pids[index], number)

    def end_of(self, index: int, limit: float = LIMIT) -> int:
        return self.host.end_of(f"{self._job}/{index}", limit)

    def why(self, index: int) -> str:
        return (self.folder / f"keeper{index}.why").read_text()

    def events(self, index: int, kind: str) -> list[dict[str, Any]]:
        path = self.folder / f"keeper{index}"
        lines = path.read_text().splitlines() if path.exists() else []
        return [e for e in (json.loads(line)["event"] for line in lines) if e["event"] == kind]


def wait_until(done: Any, limit: float = LIMIT) -> None:
    """For what only a file system can tell."""
    pause = threading.Event()
    for _ in range(int(limit / 0.005)):
        if done():
            return
        pause.wait(0.005)
    raise AssertionError("it did not happen in time")
