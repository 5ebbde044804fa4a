"""A program that nobody can change: adds numbers up to a goal, and writes the sum at the end.

Under the stand-in for DMTCP its memory is the file of STANDIN_MEMORY. With --state it keeps a checkpoint file
of its own instead, written in place or replaced, and continues from it with --resume.
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--goal", type=int, required=True)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--state", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--pace", type=float, default=0.01)
    given = parser.parse_args()
    memory = os.environ.get("STANDIN_MEMORY")
    file = given.state or Path(memory or "state")
    count = total = 0
    if (memory and file.exists()) or given.resume:
        # A torn or damaged file is an error, as for any real program.
        text = file.read_text()
        if not text.endswith(";"):
            print("bad checkpoint", file=sys.stderr)
            return 9
        count, total = (int(word) for word in text[:-1].split(","))
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopping.append(number))
    while count < given.goal and not stopping:
        time.sleep(given.pace)
        count += 1
        total += count
        part = file.with_name(file.name + ".part")
        part.write_text(f"{count},{total};")
        os.replace(part, file)
    if count >= given.goal:
        given.result.write_text(f"{total}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
