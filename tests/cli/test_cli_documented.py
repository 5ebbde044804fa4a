"""docs/cli.md has every verb, every option as --help explains it, and every exit code."""

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from holdfast.cli import result
from holdfast.cli.main import VERBS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "cli.md").read_text()
_REFRESH = "run `python docs/make_cli_reference.py`"

spec = spec_from_file_location("make_cli_reference", DOCS / "make_cli_reference.py")
assert spec is not None
assert spec.loader is not None
maker = module_from_spec(spec)
spec.loader.exec_module(maker)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_and_option_is_in_the_page(verb):
    _, _, section = PAGE.partition(f"### `holdfast {verb}`")
    assert section, f"{verb} is not documented; {_REFRESH}"
    section = section.partition("\n### ")[0]
    for row in maker._rows(maker.verb_parser(verb, VERBS[verb][0])):
        assert row in section, f"holdfast {verb}: {row} is not documented; {_REFRESH}"


def test_no_verb_in_the_page_is_gone():
    assert set(re.findall(r"### `holdfast ([a-z-]+)`", PAGE)) == set(VERBS)


def test_every_exit_code_is_in_the_page():
    for name, code in vars(result).items():
        if isinstance(code, int) and name.isupper():
            assert f"| {code} |" in PAGE, name
