"""Writes the reference part of docs/cli.md from the parsers themselves: run it after changing an option.

python docs/make_cli_reference.py
"""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path

from holdfast.cli.main import VERBS

PAGE = Path(__file__).parent / "cli.md"
BEGIN, END = "<!-- reference: begin -->", "<!-- reference: end -->"


def reference() -> str:
    """One section for every verb, one line for every argument."""
    return "\n".join(_section(verb, module, line) for verb, (module, line) in VERBS.items())


def verb_parser(verb: str, module: str) -> argparse.ArgumentParser:
    subparsers = argparse.ArgumentParser(prog="holdfast").add_subparsers()
    import_module(f"holdfast.cli.{module}").add_parser(subparsers)
    parser: argparse.ArgumentParser = subparsers.choices[verb]
    return parser


def _section(verb: str, module: str, line: str) -> str:
    parser = verb_parser(verb, module)
    text = parser.description or line[0].upper() + line[1:] + "."
    rows = "\n".join(_rows(parser))
    return f"### `holdfast {verb}`\n\n{' '.join(text.split())}\n\n| argument | meaning |\n|---|---|\n{rows}\n"


def _rows(parser: argparse.ArgumentParser, prefix: str = "") -> list[str]:
    rows = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                rows += _rows(inner, f"{prefix}{name} ")
        elif action.help != argparse.SUPPRESS and not isinstance(action, argparse._HelpAction):
            rows.append(f"| `{prefix}{_escaped(_spelled(action))}` | {_escaped(_help(parser, action))} |")
    return rows


def _spelled(action: argparse.Action) -> str:
    value = action.metavar or (
        "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper()
    )
    if isinstance(value, tuple):
        value = " ".join(value)
    if not action.option_strings:
        return value if action.nargs != "?" else f"[{value}]"
    return ", ".join(action.option_strings) + ("" if action.nargs == 0 else f" {value}")


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """As --help prints it, its default filled in."""
    return parser._get_formatter()._expand_help(action) if action.help else ""


def _escaped(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def main() -> None:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{reference()}\n{END}{after}")


if __name__ == "__main__":
    main()
