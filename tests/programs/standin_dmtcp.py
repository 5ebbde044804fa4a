"""Speaks the three commands of DMTCP for programs that keep their state in one file.

The file named by STANDIN_MEMORY stands for the program's memory: an image is a copy of it, taken while the
program stands still. Everything around it is as with the real commands: a coordinator on a port, images
called ckpt_*.dmtcp in --ckptdir, --bcheckpoint that returns when they are written, the program's exit code.
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--coord-host", required=True)
    parser.add_argument("--coord-port", type=int, required=True)
    return parser


def _processes() -> argparse.ArgumentParser:
    parser = _parser()
    parser.add_argument("--new-coordinator", action="store_true", required=True)
    parser.add_argument("--ckptdir", type=Path, required=True)
    parser.add_argument("rest", nargs=argparse.REMAINDER)
    return parser


def launch() -> int:
    given = _processes().parse_args()
    return _run(given, given.rest, b"")


def restart() -> int:
    given = _processes().parse_args()
    image = json.loads(Path(given.rest[0]).read_bytes())
    return _run(given, image["command"], bytes.fromhex(image["memory"]))


def _run(given: argparse.Namespace, command: list[str], memory: bytes) -> int:
    file = given.ckptdir / "memory"
    file.unlink(missing_ok=True)
    if memory:
        file.write_bytes(memory)
    server = socket.create_server((given.coord_host, given.coord_port))
    program = subprocess.Popen(command, env={**os.environ, "STANDIN_MEMORY": str(file)})
    threading.Thread(target=_serve, args=(server, program, given, command, file), daemon=True).start()
    code = program.wait()
    return code if code >= 0 else 128 - code


def _serve(
    server: socket.socket,
    program: subprocess.Popen[bytes],
    given: argparse.Namespace,
    command: list[str],
    file: Path,
) -> None:
    while True:
        connection, _ = server.accept()
        with connection:
            order = connection.recv(100)
            if order == b"--bcheckpoint":
                _checkpoint(program, given, command, file)
            elif order == b"--kill":
                program.kill()
            connection.sendall(b"done")


def _checkpoint(
    program: subprocess.Popen[bytes], given: argparse.Namespace, command: list[str], file: Path
) -> None:
    program.send_signal(signal.SIGSTOP)
    try:
        memory = file.read_bytes() if file.exists() else b""
        image = json.dumps({"command": command, "memory": memory.hex()}).encode()
        part = given.ckptdir / "ckpt_program_1.dmtcp.temp"
        part.write_bytes(image)
        os.replace(part, given.ckptdir / "ckpt_program_1.dmtcp")
        (given.ckptdir / "dmtcp_restart_script.sh").write_text("#!/bin/sh\n")
    finally:
        program.send_signal(signal.SIGCONT)


def order() -> int:
    parser = _parser()
    orders = parser.add_mutually_exclusive_group(required=True)
    for one in ("--bcheckpoint", "--kill"):
        orders.add_argument(one, dest="order", action="store_const", const=one)
    given = parser.parse_args()
    end = time.monotonic() + 10
    while True:
        try:
            with socket.create_connection((given.coord_host, given.coord_port), timeout=10) as connection:
                connection.sendall(given.order.encode())
                return 0 if connection.recv(10) == b"done" else 2
        except ConnectionRefusedError:
            # The program may only just be starting, as with the real one.
            if time.monotonic() > end:
                print("cannot connect to the coordinator", file=sys.stderr)
                return 2
            time.sleep(0.05)


if __name__ == "__main__":
    verbs = {"dmtcp_launch": launch, "dmtcp_restart": restart, "dmtcp_command": order}
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(verbs[Path(sys.argv[0]).name]())
