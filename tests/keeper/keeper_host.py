"""A process without threads that forks keepers, so that each starts at once. It speaks lines of JSON.

{"name": "a", "command": [...], "settings": {...}, "environ": {...}}
    ->  {"started": "a", "pid": 7}
    ->  {"ended": "a", "code": 0}
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
from pathlib import Path

from holdfast.checkpoints.find import committed
from holdfast.cli.running.run_history import leaving
from holdfast.errors import HoldfastError
from holdfast.jobs.attempts import RestartRules
from holdfast.jobs.spot_machine import spot_poller
from holdfast.jobs.watchdog import HangLimits
from holdfast.keeper import chores
from holdfast.keeper.keeper import Keeper
from holdfast.keeper.settings import KeeperSettings
from holdfast.keeper.voice import Voice
from holdfast.stores.store import CheckpointStore


def newest_checkpoint(run: str) -> str | None:
    try:
        return next((str(one.name) for one in committed(CheckpointStore(run)) if one.manifest), None)
    except HoldfastError:
        return None


def cut_off_while(marker: Path) -> None:
    """The network of this node is gone while the file is there; the shared file system is not."""
    hear, connect = Voice.hear, socket.create_connection

    def hear_nothing(voice: Voice) -> dict:
        if marker.exists():
            raise TimeoutError("the network is gone")
        return hear(voice)

    def connect_nowhere(*given, **more) -> socket.socket:
        if marker.exists():
            raise TimeoutError("the network is gone")
        return connect(*given, **more)

    Voice.hear = hear_nothing
    socket.create_connection = connect_nowhere


def be_a_keeper(request: dict) -> int:
    os.environ.update(request["environ"])
    if os.environ.get("DIE_WHILE_WRITING"):
        chores.write_part = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    if marker := os.environ.get("CUT_OFF_WHILE"):
        cut_off_while(Path(marker))
    log = Path(request["log"])
    given = dict(request["settings"])
    rules = RestartRules(**given.pop("rules", {"first_pause": 0.0}))
    hang = HangLimits(**given.pop("hang", {}))

    def report(event, folder) -> None:
        with log.open("a") as file:
            file.write(json.dumps({"folder": folder, "event": json.loads(event.to_line())}) + "\n")

    notices = spot_poller(os.environ.get("SPOT", "off"), {})
    if notices is not None:
        notices.start()
    keeper = Keeper(
        request["command"],
        KeeperSettings(**given, rules=rules, hang=hang),
        report=report,
        newest_checkpoint=newest_checkpoint,
        leaving=lambda: leaving(notices),
    )
    code = keeper.run()
    log.with_suffix(".why").write_text(keeper.why)
    return code


def main() -> None:
    names: dict[int, str] = {}
    ear, mouth = os.pipe()
    os.set_blocking(mouth, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(mouth)
    while True:
        ready, _, _ = select.select([0, ear], [], [])
        if ear in ready:
            os.read(ear, 4096)
            while names:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                print(
                    json.dumps({"ended": names.pop(pid), "code": os.waitstatus_to_exitcode(status)}),
                    flush=True,
                )
        if 0 in ready:
            line = sys.stdin.readline()
            if not line:
                return
            request = json.loads(line)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.setsid()
                errors = os.open(request["log"] + ".err", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                for target in (1, 2):
                    os.dup2(errors, target)
                os.close(0)
                code = 99
                try:
                    code = be_a_keeper(request)
                except BaseException:  # noqa: BLE001  the fork must not return into the host
                    import traceback

                    traceback.print_exc()
                finally:
                    sys.stderr.flush()
                    os._exit(code)
            names[pid] = request["name"]
            print(json.dumps({"started": request["name"], "pid": pid}), flush=True)


if __name__ == "__main__":
    main()
