"""A Python that has torch imported already, so that fifty trainings start in seconds and not in minutes.

`python warm_python.py SOCKET` serves. Each connection names a folder and gets a forked process of its own,
which trains there. `client` below is the command that a supervisor starts: it ends as the training behind it
ended, by exit code or by signal.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import sys
import tempfile
from pathlib import Path

EPOCHS = 60
KILLS = 50


def client(path: str, request: dict[str, object]) -> None:
    """Standard library only, and quick: it stands in for the start of an interpreter."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        server.sendall(json.dumps(request).encode() + b"\n")
        status = int(server.makefile().readline())
    if os.WIFSIGNALED(status):
        os.kill(os.getpid(), os.WTERMSIG(status))
    sys.exit(os.WEXITSTATUS(status))


def train_and_die(folder: Path, attempt: int) -> int:
    """The first fifty attempts kill themselves with SIGKILL, each at a place of its own."""
    luck = random.Random(attempt)
    left = luck.randint(1, 60) if attempt < KILLS else -1

    def at(place: str) -> None:
        nonlocal left
        if place == "boundary" and attempt % 4 and attempt < KILLS:
            # Its life is shorter than a save; most should get on nevertheless, and be killed after one.
            opened[0].save_now("to get on").wait(60)
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    # Often while it is being killed, so that kills fall into every part of a save.
    every = "1 steps" if attempt < KILLS else "40 steps"
    opened: list[holdfast.Run] = []
    digest = train(folder, at, epochs=EPOCHS, every=every, hooks=opened.append)
    (folder.parent / "digest").write_text(digest)
    return 0


def serve(path: str) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        train(Path(folder) / "run", epochs=1)  # torch imports much of itself when it is first used
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        print("ready", flush=True)
        while True:
            connection, _ = listener.accept()
            with connection:
                request = json.loads(connection.makefile().readline())
                child = os.fork()
                if child == 0:
                    listener.close()
                    os.environ.update(request["environ"])
                    try:
                        code = train_and_die(Path(request["folder"]), request["attempt"])
                    except BaseException as error:  # noqa: BLE001  the fork must not return into the server
                        print(repr(error), file=sys.stderr)
                        code = 1
                    os._exit(code)
                _, status = os.waitpid(child, 0)
                connection.sendall(f"{status}\n".encode())


if __name__ == "__main__":
    if len(sys.argv) == 2:
        import torch
        from small_training import train

        import holdfast

        serve(sys.argv[1])
    else:
        wanted = {name: os.environ[name] for name in os.environ if name.startswith("HOLDFAST_")}
        attempt = int(os.environ["HOLDFAST_ATTEMPT"])
        client(sys.argv[1], {"folder": sys.argv[2], "attempt": attempt, "environ": wanted})
