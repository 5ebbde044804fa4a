"""Runs scripts of the laboratory: plain, with holdfast, and killed again and again; compares every loss.

A program of its own and not part of the test process: torch is imported once, here, each attempt is a fork,
and forking is safe only while no other thread runs. Prints one JSON line for each script.

python forked_scripts.py WORK KILLS SEED [SCRIPT ...]
"""

import json
import os
import random
import runpy
import signal
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
SCRIPTS = Path(__file__).parent / "scripts"
IO_VERBS = (
    "make_directory", "create", "preallocate", "write_at", "truncate", "fsync", "fsync_directory", "rename",
    "unlink", "remove_directory", "append", "lock", "open_read", "read_at", "list_names",
)  # fmt: skip


def all_scripts() -> list[str]:
    return sorted(path.stem for path in SCRIPTS.glob("*.py") if path.stem != "switch")


def run_script(path: Path, environment: Mapping[str, str], output: Path, die_at_call: int = 0) -> int:
    """One attempt in a process of its own; returns its exit code, negative for a signal."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        return os.waitstatus_to_exitcode(status)
    code = 1
    try:
        said = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(said, 1)
        os.dup2(said, 2)
        os.environ.update(environment)
        sys.path[:0] = [str(path.parent), str(SCRIPTS)]
        sys.argv = [str(path)]
        if die_at_call:
            _die_at_call(die_at_call)
        runpy.run_path(str(path), run_name="__main__")
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001  in the output, where the parent looks
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _die_at_call(nth: int) -> None:
    """SIGKILL before the nth call to the file system: most of them belong to a save."""
    from holdfast.stores.posix import PosixIO

    count = [0]
    for verb in IO_VERBS:
        real = getattr(PosixIO, verb)

        def counted(*args: Any, _real: Any = real, **kwargs: Any) -> Any:
            count[0] += 1
            if count[0] == nth:
                os.kill(os.getpid(), signal.SIGKILL)
            return _real(*args, **kwargs)

        setattr(PosixIO, verb, counted)


def losses(path: Path) -> list[tuple[int, str]]:
    if not path.exists():
        return []
    lines = [line.split() for line in path.read_text().splitlines()]
    return [(int(step), loss) for step, loss in lines]


def examine(name: str, work: Path, kills: int, seed: int) -> dict[str, Any]:
    """One script: plain, with holdfast, and killed until it was killed often enough."""
    script = SCRIPTS / f"{name}.py" if name in all_scripts() else Path(name)
    work = work / script.stem
    work.mkdir(parents=True)
    dice = random.Random(f"{seed} {script.stem}")
    said = work / "output.txt"
    # Whether saving changes anything, and whether being killed does, are two questions.
    result: dict[str, Any] = {"script": script.stem, "kills": 0, "with_holdfast": None, "problems": []}

    def attempt(which: str, *, plain: bool = False, die_at: int = -1, die_at_call: int = 0) -> int:
        environment = {
            "LAB_RUN": str(work / which), "LAB_LOSSES": str(work / f"{which}.losses"),
            "LAB_PLAIN": "1" if plain else "", "LAB_DIE_AT": str(die_at),
        }  # fmt: skip
        return run_script(script, environment, said, die_at_call)

    def problem(what: str) -> dict[str, Any]:
        result["problems"].append(f"{what}; {said.read_text()[-2000:]}")
        return result

    if (code := attempt("plain", plain=True)) != 0:
        return problem(f"the plain script ended with {code}")
    expected = losses(work / "plain.losses")
    if [step for step, _ in expected] != list(range(1, len(expected) + 1)) or len(expected) < 10:
        return problem(f"the plain script made the steps {[step for step, _ in expected]}")
    if (code := attempt("undisturbed")) != 0:
        return problem(f"undisturbed: exit code {code}")
    if (difference := _first_difference(expected, losses(work / "undisturbed.losses"))) is not None:
        result["with_holdfast"] = difference
        expected = losses(work / "undisturbed.losses")
    by_step = dict(expected)
    for round_ in range(20 * kills):
        if result["kills"] >= kills:
            break
        which = f"killed{round_}"
        path = work / f"{which}.losses"
        for _ in range(200):
            before = len(losses(path))
            reached = max((step for step, _ in losses(path)), default=0)
            how: dict[str, int] = {}
            if result["kills"] < kills:
                how = {"die_at": dice.randint(max(1, reached - 4), len(by_step))}
                if dice.random() < 0.5:
                    how = {"die_at_call": dice.randint(1, 150)}
            code = attempt(which, **how)
            new = losses(path)[before:]
            wrong = [(step, loss) for step, loss in new if by_step.get(step) != loss]
            if wrong:
                return problem(f"{which} {how}: step {wrong[0][0]} differs, begun at {new[0][0]}")
            if code == -signal.SIGKILL:
                result["kills"] += 1
            elif code != 0:
                return problem(f"{which} {how}: exit code {code}")
            else:
                missing = set(by_step) - {step for step, _ in losses(path)}
                if missing:
                    return problem(f"{which}: steps {sorted(missing)} were never made")
                break
    return result


def _first_difference(expected: list[tuple[int, str]], found: list[tuple[int, str]]) -> str | None:
    for ours, theirs in zip(expected, found, strict=False):
        if ours != theirs:
            return f"step {ours[0]} has the loss {theirs} and not {ours}"
    if len(expected) != len(found):
        return f"{len(found)} steps and not {len(expected)}"
    return None


def prepare() -> None:
    """Import once, for all forks, what takes long."""
    import torch
    import torch._dynamo
    import torch.utils.data

    import holdfast

    torch.set_num_threads(1)
    _ = holdfast.Run


if __name__ == "__main__":
    prepare()
    place, wanted, number, *names = sys.argv[1:]
    for each in names or all_scripts():
        print(json.dumps(examine(each, Path(place), int(wanted), int(number))), flush=True)
