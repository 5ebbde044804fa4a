"""The switches that every benchmark script shares, and the scratch folder it writes to.

Scratch is made on the disk under test and removed at the end; it must never be the results folder.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent


@dataclass(frozen=True)
class Options:
    quick: bool
    repeats: int
    scratch_parent: Path
    out: Path


def parse_options(description: str | None, repeats: int = 7) -> Options:
    """Read the command line. `repeats` is what a full run does; a quick one does two."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--quick", action="store_true", help="a small state and two repeats, about 20 seconds"
    )
    parser.add_argument("--repeats", type=int, default=None, help=f"rounds to measure (default {repeats})")
    parser.add_argument(
        "--dir", type=Path, default=REPOSITORY / "runs", help="where to write: picks the disk"
    )
    parser.add_argument("--out", type=Path, default=None, help="where the JSON goes")
    given = parser.parse_args()
    # A quick run must not replace the numbers that the documentation quotes.
    fallback = given.dir / "bench-quick-results" if given.quick else HERE / "results"
    return Options(
        quick=given.quick,
        repeats=given.repeats or (2 if given.quick else repeats),
        scratch_parent=given.dir,
        out=given.out or fallback,
    )


@contextmanager
def scratch(options: Options) -> Iterator[Path]:
    """A fresh folder on the disk under test, gone afterwards."""
    options.scratch_parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=options.scratch_parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
