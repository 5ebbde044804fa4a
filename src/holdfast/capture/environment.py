"""Where and with what a checkpoint was made: an allowlist, so that no secret of the environment gets in."""

from __future__ import annotations

import os
import platform
import re
import socket
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = ("holdfast", "torch", "numpy")
_VARIABLES = (
    "SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT", "SLURM_JOB_NODELIST",
    "CUDA_VISIBLE_DEVICES", "CUBLAS_WORKSPACE_CONFIG", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTHONHASHSEED",
    "WORLD_SIZE", "LOCAL_WORLD_SIZE",
)  # fmt: skip
# Even an allowed variable may hold something it should not.
_SECRET = re.compile(r"key|token|secret|passw|cred", re.IGNORECASE)


def describe_environment(start: Path | None = None) -> dict[str, Any]:
    """Host, versions, git commit and the few variables that can change what training computes."""
    found = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "versions": {name: _version(name) for name in _PACKAGES},
        "variables": {k: v for k, v in found.items() if not _SECRET.search(v)},
        "git_commit": git_commit(start or Path.cwd()),
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"


def git_commit(start: Path) -> str | None:
    """The commit checked out around `start`, read from git's own files: no process is started."""
    try:
        for folder in (start, *start.parents):
            git = folder / ".git"
            if git.is_file():
                git = (folder / git.read_text().removeprefix("gitdir:").strip()).resolve()
            if git.is_dir():
                return _head_commit(git)
    except (OSError, UnicodeDecodeError):
        return None
    return None


def _head_commit(git: Path) -> str | None:
    head = (git / "HEAD").read_text().strip()
    if not head.startswith("ref: "):
        return head if _is_commit(head) else None
    name = head.removeprefix("ref: ")
    if re.fullmatch(r"refs/[A-Za-z0-9._/-]+", name) is None or ".." in name:
        return None
    common = git / "commondir"
    base = (git / common.read_text().strip()).resolve() if common.exists() else git
    loose = base / name
    if loose.is_file():
        text = loose.read_text().strip()
        return text if _is_commit(text) else None
    packed = base / "packed-refs"
    if packed.is_file():
        for line in packed.read_text().splitlines():
            commit, _, ref = line.partition(" ")
            if ref == name and _is_commit(commit):
                return commit
    return None


def _is_commit(text: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", text) is not None
