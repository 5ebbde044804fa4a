"""Leaves one tracked thing after the other out of a script: does it matter, does `rehearse` find and name it,
does the run's own look name it? Prints one JSON line for each, and one for the complete script.

python forked_leave_outs.py WORK SEED KILLS SCRIPT[:THING] ...
"""

import ast
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forked_scripts import SCRIPTS, examine, prepare, run_script

from holdfast.doctor.rehearsing import rehearse

_SETTINGS = ("every", "save_frozen")
_SAID = re.compile(r"^  (\S.*?) \([^()]*, (\S+) line (\d+)\): ", re.MULTILINE)


@dataclass(frozen=True)
class Variant:
    """A script without one of its things; `names` are what it is called there, any of which will do."""

    left_out: str
    names: tuple[str, ...]
    source: str


def variants(script: str) -> Iterator[Variant]:
    """The complete script, then one for each thing: a keyword of Run, or a line that says what stands there
    without it."""
    source = (SCRIPTS / f"{script}.py").read_text()
    lines = source.splitlines(keepends=True)
    yield Variant("", (), source)
    for call in ast.walk(ast.parse(source)):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "holdfast.Run":
            for keyword in call.keywords:
                if keyword.arg not in _SETTINGS:
                    row, text = keyword.lineno - 1, lines[keyword.lineno - 1]
                    before, after = text[: keyword.col_offset], text[keyword.end_col_offset :]
                    before = before if after.startswith(",") else before.removesuffix(", ")
                    shorter = before + after.removeprefix(",").removeprefix(" ")
                    changed = [*lines[:row], shorter, *lines[row + 1 :]]
                    yield Variant(str(keyword.arg), (ast.unparse(keyword.value),), "".join(changed))
    for row, text in enumerate(lines):
        if instead := re.match(r"(\s*)(.*)  # without: (.*)$", text):
            changed = [*lines[:row], f"{instead[1]}{instead[3]}\n", *lines[row + 1 :]]
            kept = re.findall(r"\w+", instead[2].partition("=")[2])
            yield Variant(f"line {row + 1}", tuple(kept), "".join(changed))


def judge(script: str, variant: Variant, work: Path, seed: int, kills: int) -> dict[str, Any]:
    place = work / f"{script}-{variant.left_out.replace(' ', '') or 'complete'}"
    place.mkdir(parents=True)
    path = place / f"{script}.py"
    path.write_text(variant.source)
    killed = examine(str(path), place / "killed", kills, seed)
    said = (place / "killed" / script / "output.txt").read_text()

    def launch(environment: Mapping[str, str], output: Path) -> int:
        off = {"LAB_RUN": str(place / "real"), "LAB_LOSSES": "", "LAB_PLAIN": "", "LAB_DIE_AT": "-1"}
        return run_script(path, {**environment, **off}, output)

    verdict = rehearse(launch, place / "rehearsed", steps=24, tell=lambda what: None)
    causes = verdict.difference.causes if verdict.difference else verdict.harmless
    looked = {name: int(line) for name, _, line in _SAID.findall(said)}
    lines = variant.source.splitlines()
    return {
        "script": script,
        "left_out": variant.left_out,
        "matters": bool(killed["problems"]),
        "exact": verdict.exact,
        "causes": [cause.what for cause in causes],
        "named": any(_is_named(variant, c.name, c.line, lines) for c in causes),
        "looked": sorted(looked),
        "look_named": any(_is_named(variant, name, line, lines) for name, line in looked.items()),
        "touched": (place / "real").exists(),
    }


def _is_named(variant: Variant, name: str, line: int, lines: list[str]) -> bool:
    """By its name, and by the line that makes it."""
    return name in variant.names and name.split(".")[-1] in lines[line - 1]


def main(work: Path, seed: int, kills: int, wanted: list[str]) -> None:
    prepare()
    for each in wanted:
        script, _, thing = each.partition(":")
        for variant in variants(script):
            if not thing or variant.left_out == thing:
                print(json.dumps(judge(script, variant, work, seed, kills)), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
