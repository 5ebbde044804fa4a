"""A program that writes its checkpoint as carelessly as real ones do, and goes on from half a one silently.

Adds numbers up to a goal. The ways of writing: `in-place` (over the old one, with a pause in the middle),
`two` (one file after the other), `append` (at the end of a growing file, with a pause in the middle),
`append-closed` (the same, closing the file in between).
"""

import os
import sys
import time


def main() -> int:
    way, goal, pause, resume = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), "--resume" in sys.argv
    count = total = 0
    if resume:
        count, total = read(way)
    while count < goal:
        count += 1
        total += count
        time.sleep(2 * pause)
        write(way, f"{count:08d}", f"{total:016d}", pause)
    with open("result.part", "w") as file:
        file.write(f"{total}\n")
    os.replace("result.part", "result")
    return 0


def read(way: str) -> tuple[int, int]:
    if way == "two":
        with open("state") as first, open("state.second") as second:
            return number(first.read()), number(second.read())
    with open("state") as file:
        text = file.read()
    if way.startswith("append"):
        text = text[-24:]
    return number(text[:8]), number(text[8:])


def number(text: str) -> int:
    return int(text or "0")


def write(way: str, count: str, total: str, pause: float) -> None:
    if way == "two":
        with open("state", "w") as file:
            file.write(count)
        time.sleep(pause)
        with open("state.second", "w") as file:
            file.write(total)
        return
    text = count + total
    with open("state", "w" if way == "in-place" else "a") as file:
        file.write(text[:13])
        file.flush()
        time.sleep(pause)
        if way != "append-closed":
            file.write(text[13:])
            return
    time.sleep(pause)
    with open("state", "a") as file:
        file.write(text[13:])


if __name__ == "__main__":
    sys.exit(main())
