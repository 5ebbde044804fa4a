"""Whether a command that failed before it gave any sign of life would only fail again: looks, runs nothing of
the user's own."""

from __future__ import annotations

import ast
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

USAGE = 2
# Somebody who lives longer has got past his imports and arguments.
SECONDS = 60.0
_ASK_SECONDS = 30.0
# Only the topmost packages: finding a deeper one would import those above it.
_FIND = """
import importlib.util, sys
sys.path[0] = sys.argv[1]
for name in sys.argv[2:]:
    try:
        found = importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        found = True
    if not found:
        print(name)
"""


def permanent_error(
    command: Sequence[str], returncode: int, seconds: float, environ: Mapping[str, str]
) -> str | None:
    """What is wrong, if trying again cannot help; None if it may."""
    if returncode <= 0 or seconds > SECONDS:
        return None
    program = Path(command[0]).name
    script = _script(program, command[1:])
    if script is None:
        return _usage(returncode)
    path = Path(script)
    if not path.is_file():
        return f"there is no script {script}"
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError) as error:
        return f"{script} is no Python: {error}"
    except OSError as error:
        return f"{script} cannot be read: {error.strerror}"
    missing = _missing(command[0] if program.startswith("python") else "python", path, tree, environ)
    return f"{script} imports {missing[0]}, which is not installed" if missing else _usage(returncode)


def _script(program: str, words: Sequence[str]) -> str | None:
    """The Python script that is started, where that is certain."""
    if program.startswith("torchrun"):
        return next((word for word in words if word.endswith(".py")), None)
    first = next((word for word in words if not word.startswith("-") or word in ("-m", "-c")), "")
    return first if program.startswith("python") and first.endswith(".py") else None


def _usage(returncode: int) -> str | None:
    if returncode != USAGE:
        return None
    return "exit code 2 right at the start: wrong arguments, or a file that is not there"


def _missing(python: str, script: Path, tree: ast.Module, environ: Mapping[str, str]) -> list[str]:
    names = []
    # At the top alone: an import in a function or a try may be meant to fail.
    for node in tree.body:
        if isinstance(node, ast.Import):
            names += [alias.name.partition(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.append(node.module.partition(".")[0])
    if not names:
        return []
    folder = os.path.dirname(os.path.abspath(script))
    try:
        done = subprocess.run(
            [python, "-c", _FIND, folder, *dict.fromkeys(names)], env=dict(environ), capture_output=True,
            text=True, timeout=_ASK_SECONDS, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.split() if done.returncode == 0 else []
