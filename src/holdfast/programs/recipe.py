"""How a program with checkpoint files of its own is run, continued and known to be done. Data, no behaviour.

A recipe is a TOML file; `gromacs` and `generic` are shipped. See docs/any-program.md for the fields.
"""

from __future__ import annotations

import re
import signal
import string
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any

from holdfast.checkpoints.file_image import is_inside
from holdfast.errors import SetupError, UsageError

_NAME = re.compile(r"[a-z][a-z0-9_]*", re.ASCII)


@dataclass(frozen=True)
class Parameter:
    """A value read from the program's own command line: what follows `flag`, or else `default`, or else
    `otherwise` if `default` speaks of a parameter without a value. `suffix` is what the program itself adds
    to a name that has none."""

    flag: str
    default: str
    otherwise: str = ""
    suffix: str = ""


@dataclass(frozen=True)
class Addition:
    """A flag's value that is added when the command has neither the flag nor one of `unless`."""

    value: str
    unless: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What holdfast has to know of a program. `{name}` in texts is replaced by a parameter's value.

    - `checkpoint`: the files to keep, relative to the working folder; `*` and `?` match as in a shell.
    - `add`: flags that are added when the command does not have them.
    - `restart`: arguments for continuing. A flag of them that the command has already gets this value.
    - `deadline`: arguments for a job that has an end; `{hours_left}` and `{seconds_left}` are known. Where
      the user gives the flag, the smaller number counts.
    - `complete_files`: done when all of these exist; without them, exit code 0 means done.
    - How a whole checkpoint is told from half a one: `replaces_files` (a new file is renamed over the old
      one), `written_last` (this one, when all others are done), `ends_with` (the file's last characters),
      `check` (a command that answers 0), or `trust_files` (not at all). `independent_files`: each file is a
      checkpoint of its own; otherwise several belong together.
    - `stop_signal`, `stop_seconds`: how to ask it to save and end, and how long that may take.
    """

    name: str
    about: str = ""
    checkpoint: tuple[str, ...]
    parameters: Mapping[str, Parameter]
    add: Mapping[str, Addition]
    restart: tuple[str, ...] = ()
    deadline: tuple[str, ...] = ()
    complete_files: tuple[str, ...] = ()
    replaces_files: bool = False
    written_last: str = ""
    ends_with: str = ""
    check: tuple[str, ...] = ()
    independent_files: bool = False
    trust_files: bool = False
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
        texts += [self.written_last, *self.check]
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
        raise UsageError(
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
        add={key: _addition(value, name, key) for key, value in _table(raw.get("add", {}), name).items()},
        restart=_texts(raw.get("restart", []), name, "restart"),
        deadline=_texts(raw.get("deadline", []), name, "deadline"),
        complete_files=_texts(raw.get("complete_files", []), name, "complete_files"),
        replaces_files=raw.get("replaces_files", False) is True,
        written_last=_text(raw.get("written_last", ""), name, "written_last"),
        ends_with=_text(raw.get("ends_with", ""), name, "ends_with"),
        check=_texts(raw.get("check", []), name, "check"),
        independent_files=raw.get("independent_files", False) is True,
        trust_files=raw.get("trust_files", False) is True,
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
    written_last: str = ""
    check: tuple[str, ...] = ()

    def arguments(self, *, resuming: bool, seconds_left: float | None) -> list[str]:
        """The command line of one attempt. A flag that the user gave as well is not given twice: programs
        refuse that, or take the wrong one."""
        words = list(self.command)
        if resuming:
            words = _with(words, self.restart, lambda theirs, ours: ours)
        if seconds_left is not None:
            left = max(seconds_left, 1.0)
            times = {"hours_left": f"{left / 3600:.5f}", "seconds_left": f"{left:.0f}"}
            words = _with(words, [_fill(text, times) for text in self.deadline], _sooner)
        return words


def prepare(recipe: Recipe, command: Sequence[str]) -> Prepared:
    """Read the parameters from the command and fill them in."""
    if not command:
        raise UsageError("there is no command to run", hint="holdfast app RECIPE -- program arguments...")
    full = list(command)
    for flag, addition in recipe.add.items():
        if not {flag, *addition.unless} & set(full):
            full += [flag, addition.value]
    values: dict[str, str] = {}
    for name, parameter in recipe.parameters.items():
        speaks_of = _placeholders(parameter.default, recipe.name)
        default = parameter.default if all(values.get(one) for one in speaks_of) else parameter.otherwise
        value = _after(full, parameter.flag) or _fill(default, values)
        is_bare = bool(value and parameter.suffix) and not value.endswith(parameter.suffix)
        values[name] = value + parameter.suffix if is_bare else value
    prepared = Prepared(
        checkpoint=tuple(_fill(text, values) for text in recipe.checkpoint),
        complete_files=tuple(_fill(text, values) for text in recipe.complete_files),
        command=tuple(full),
        restart=tuple(_fill(text, values) for text in recipe.restart),
        # The times are known when an attempt starts.
        deadline=tuple(_fill(text, values) for text in recipe.deadline),
        written_last=_fill(recipe.written_last, values),
        check=tuple(_fill(text, values) for text in recipe.check),
    )
    for path in (*prepared.checkpoint, *filter(None, [prepared.written_last])):
        if not is_inside(path):
            raise SetupError(
                f"recipe {recipe.name!r}: the checkpoint file {path!r} lies outside the working folder",
                hint="start the program in the folder that holds its files, and use relative paths",
            )
    return prepared


def _after(command: Sequence[str], flag: str) -> str | None:
    """The value behind the last such flag; a flag whose value may be left out is followed by the next one."""
    positions = [index for index, word in enumerate(command[:-1]) if word == flag]
    if not positions or _is_flag(command[positions[-1] + 1]):
        return None
    return command[positions[-1] + 1]


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not word[1:2].isdigit() and word != "-"


def _with(words: list[str], ours: Sequence[str], choose: Callable[[str, str], str]) -> list[str]:
    """`ours` added to the command. Where it has one of those flags, `choose` says which value stays."""
    added: list[str] = []
    words, position = list(words), 0
    while position < len(ours):
        flag, position = ours[position], position + 1
        values = []
        while position < len(ours) and _is_flag(flag) and not _is_flag(ours[position]):
            values.append(ours[position])
            position += 1
        if not _is_flag(flag) or flag not in words:
            added += [flag, *values]
            continue
        theirs = _after(words, flag)
        at = len(words) - 1 - words[::-1].index(flag)
        if values:
            words[at + 1 : at + 1 + (theirs is not None)] = [choose(theirs or "", values[0]), *values[1:]]
    return words + added


def _sooner(theirs: str, ours: str) -> str:
    try:
        return theirs if float(theirs) <= float(ours) else ours
    except ValueError:
        return theirs or ours


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
    known = {"flag", "default", "otherwise", "suffix"}
    for name, entry in _table(raw, recipe).items():
        readable = isinstance(entry, dict) and {"flag", "default"} <= set(entry) <= known
        if _NAME.fullmatch(name) is None or not readable:
            raise SetupError(
                f"recipe {recipe!r}: the parameter {name!r} cannot be read",
                hint='write it as: name = { flag = "-o", default = "out" }',
            )
        found[name] = Parameter(**{key: _text(value, recipe, name) for key, value in entry.items()})
    return found


def _addition(raw: Any, recipe: str, flag: str) -> Addition:
    if isinstance(raw, dict) and "value" in raw and set(raw) <= {"value", "unless"}:
        return Addition(_text(raw["value"], recipe, flag), _texts(raw.get("unless", []), recipe, flag))
    return Addition(_text(raw, recipe, f"add.{flag}"))


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
