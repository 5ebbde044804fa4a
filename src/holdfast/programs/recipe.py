"""How a program with checkpoint files of its own is run, continued and known to be done. Data, no behaviour.

A recipe is a TOML file; `gromacs` and `generic` are shipped. See docs/any-program.md for the fields.
"""

from __future__ import annotations

import re
import signal
import string
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any

from holdfast.checkpoints.file_image import is_inside
from holdfast.errors import SetupError

_NAME = re.compile(r"[a-z][a-z0-9_]*", re.ASCII)


@dataclass(frozen=True)
class Parameter:
    """A value read from the program's own command line: what follows `flag`, or else `default`."""

    flag: str
    default: str


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What holdfast has to know of a program. `{name}` in texts is replaced by a parameter's value.

    - `checkpoint`: the files to keep, relative to the working folder; `*` and `?` match as in a shell.
    - `add`: flags that are added when the command does not have them.
    - `restart`: arguments added when there is something to continue from.
    - `deadline`: arguments added when the job has an end; `{hours_left}` and `{seconds_left}` are known.
    - `complete_files`: done when all of these exist; without them, exit code 0 means done.
    - `replaces_files`: the program writes a new file and renames it, so what is found is whole.
    - `stop_signal`, `stop_seconds`: how to ask it to save and end, and how long that may take.
    """

    name: str
    about: str = ""
    checkpoint: tuple[str, ...]
    parameters: Mapping[str, Parameter]
    add: Mapping[str, str]
    restart: tuple[str, ...] = ()
    deadline: tuple[str, ...] = ()
    complete_files: tuple[str, ...] = ()
    replaces_files: bool = False
    stop_signal: str = "TERM"
    stop_seconds: float = 120.0

    def __post_init__(self) -> None:
        where = f"recipe {self.name!r}"
        if not self.checkpoint:
            raise SetupError(f"{where} names no checkpoint files", hint='checkpoint = ["state.cpt"]')
        if f"SIG{self.stop_signal}" not in signal.Signals.__members__:
            raise SetupError(f"{where}: there is no signal {self.stop_signal!r}", hint='use "TERM" or "USR1"')
        known = {*self.parameters, "hours_left", "seconds_left"}
        texts = [*self.checkpoint, *self.restart, *self.deadline, *self.complete_files]
        for text in [*texts, *(one.default for one in self.parameters.values())]:
            if unknown := _placeholders(text, where) - known:
                raise SetupError(
                    f"{where}: {{{min(unknown)}}} in {text!r} is not one of its parameters",
                    hint=f"define it under [parameters], or use one of {sorted(known)}",
                )


def load_recipe(name_or_path: str) -> Recipe:
    """A shipped recipe by name, or any other by the path of its TOML file."""
    if name_or_path in shipped_recipes():
        text = (_shipped() / f"{name_or_path}.toml").read_text(encoding="utf-8")
        return parse_recipe(text, name_or_path)
    path = Path(name_or_path)
    if not path.is_file():
        raise SetupError(
            f"there is no recipe {name_or_path!r}",
            hint=f"use one of {', '.join(shipped_recipes())}, or the path of a TOML file",
        )
    return parse_recipe(path.read_text(encoding="utf-8"), path.stem)


def shipped_recipes() -> list[str]:
    return sorted(Path(entry.name).stem for entry in _shipped().iterdir() if entry.name.endswith(".toml"))


def _shipped() -> Any:
    return resources.files("holdfast.programs") / "recipes"


def parse_recipe(text: str, name: str) -> Recipe:
    """SetupError names the field that is wrong."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SetupError(f"recipe {name!r} is not valid TOML: {error}") from error
    known = {field.name for field in fields(Recipe)} - {"name"}
    if unknown := sorted(set(raw) - known):
        raise SetupError(f"recipe {name!r} has the unknown field {unknown[0]!r}", hint=f"use {sorted(known)}")
    return Recipe(
        name=name,
        about=_text(raw.get("about", ""), name, "about"),
        checkpoint=_texts(raw.get("checkpoint", []), name, "checkpoint"),
        parameters=_parameters(raw.get("parameters", {}), name),
        add={
            key: _text(value, name, f"add.{key}") for key, value in _table(raw.get("add", {}), name).items()
        },
        restart=_texts(raw.get("restart", []), name, "restart"),
        deadline=_texts(raw.get("deadline", []), name, "deadline"),
        complete_files=_texts(raw.get("complete_files", []), name, "complete_files"),
        replaces_files=raw.get("replaces_files", False) is True,
        stop_signal=_text(raw.get("stop_signal", "TERM"), name, "stop_signal"),
        stop_seconds=float(raw.get("stop_seconds", 120)),
    )


@dataclass(frozen=True)
class Prepared:
    """A recipe meets a command: everything filled in."""

    checkpoint: tuple[str, ...]
    complete_files: tuple[str, ...]
    command: tuple[str, ...]
    restart: tuple[str, ...]
    deadline: tuple[str, ...]

    def arguments(self, *, resuming: bool, seconds_left: float | None) -> list[str]:
        """The command line of one attempt. What the user wrote comes first and is never changed."""
        ending = []
        if seconds_left is not None:
            left = max(seconds_left, 1.0)
            times = {"hours_left": f"{left / 3600:.5f}", "seconds_left": f"{left:.0f}"}
            ending = [_fill(text, times) for text in self.deadline]
        return [*self.command, *(self.restart if resuming else ()), *ending]


def prepare(recipe: Recipe, command: Sequence[str]) -> Prepared:
    """Read the parameters from the command and fill them in."""
    if not command:
        raise SetupError("there is no command to run", hint="holdfast app RECIPE -- program arguments...")
    full = list(command)
    for flag, value in recipe.add.items():
        if flag not in full:
            full += [flag, value]
    values: dict[str, str] = {}
    for name, parameter in recipe.parameters.items():
        values[name] = _after(full, parameter.flag) or _fill(parameter.default, values)
    prepared = Prepared(
        checkpoint=tuple(_fill(text, values) for text in recipe.checkpoint),
        complete_files=tuple(_fill(text, values) for text in recipe.complete_files),
        command=tuple(full),
        restart=tuple(_fill(text, values) for text in recipe.restart),
        # The times are known when an attempt starts.
        deadline=tuple(_fill(text, values) for text in recipe.deadline),
    )
    for path in prepared.checkpoint:
        if not is_inside(path):
            raise SetupError(
                f"recipe {recipe.name!r}: the checkpoint file {path!r} lies outside the working folder",
                hint="start the program in the folder that holds its files, and use relative paths",
            )
    return prepared


def _after(command: Sequence[str], flag: str) -> str | None:
    positions = [index for index, word in enumerate(command[:-1]) if word == flag]
    return command[positions[-1] + 1] if positions else None


def _fill(text: str, values: Mapping[str, str]) -> str:
    """Known names are replaced, others stay for a later round; "{{" is not special."""
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def _placeholders(text: str, where: str) -> set[str]:
    try:
        return {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}
    except ValueError as error:
        raise SetupError(f"{where}: {text!r}: {error}") from error


def _parameters(raw: Any, recipe: str) -> dict[str, Parameter]:
    found = {}
    for name, entry in _table(raw, recipe).items():
        if _NAME.fullmatch(name) is None or not isinstance(entry, dict) or set(entry) != {"flag", "default"}:
            raise SetupError(
                f"recipe {recipe!r}: the parameter {name!r} cannot be read",
                hint='write it as: name = { flag = "-o", default = "out" }',
            )
        found[name] = Parameter(_text(entry["flag"], recipe, name), _text(entry["default"], recipe, name))
    return found


def _table(raw: Any, recipe: str) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise SetupError(f"recipe {recipe!r}: {raw!r} should be a table")
    return raw


def _text(raw: Any, recipe: str, field: str) -> str:
    if not isinstance(raw, str):
        raise SetupError(f"recipe {recipe!r}: {field} should be a text, not {raw!r}")
    return raw


def _texts(raw: Any, recipe: str, field: str) -> tuple[str, ...]:
    if not isinstance(raw, list):
        raise SetupError(f"recipe {recipe!r}: {field} should be a list of texts, not {raw!r}")
    return tuple(_text(item, recipe, field) for item in raw)
