"""Recipes: what they say, what they refuse, and what they make of a command."""

import pytest

from holdfast.errors import SetupError
from holdfast.programs.recipe import load_recipe, parse_recipe, prepare, shipped_recipes

MDRUN = ["gmx", "mdrun", "-s", "topol.tpr"]


def test_gromacs_and_generic_are_shipped() -> None:
    assert {"gromacs", "generic"} <= set(shipped_recipes())
    for name in shipped_recipes():
        assert load_recipe(name).about


def test_gromacs_continues_from_the_checkpoint_that_its_options_name() -> None:
    recipe = load_recipe("gromacs")
    plain = prepare(recipe, MDRUN)
    assert plain.checkpoint == ("md.cpt",)
    assert plain.command[-4:] == ("-deffnm", "md", "-cpt", "5")
    named = prepare(recipe, [*MDRUN, "-deffnm", "run", "-cpo", "state.cpt", "-cpt", "1"])
    assert named.checkpoint == ("state.cpt",)
    assert named.complete_files == ("run.gro",)
    assert named.arguments(resuming=True, seconds_left=None)[-2:] == ["-cpi", "state.cpt"]
    assert named.command == (*MDRUN, "-deffnm", "run", "-cpo", "state.cpt", "-cpt", "1")


@pytest.mark.parametrize("given", [["-cpi", "state"], ["-cpi", "state.cpt"], ["-cpi"], ["-cpi", "-v"]])
def test_a_continuation_that_the_user_wrote_is_respected_and_not_given_twice(given: list[str]) -> None:
    prepared = prepare(load_recipe("gromacs"), [*MDRUN, *given])
    assert prepared.checkpoint == ("state.cpt",), "mdrun's own name for it"
    assert prepared.complete_files == ("confout.gro",)
    assert "-deffnm" not in prepared.command
    again = prepared.arguments(resuming=True, seconds_left=None)
    assert again.count("-cpi") == 1
    assert again[again.index("-cpi") + 1] == "state.cpt"
    assert ("-v" in again) == ("-v" in given)
    first = prepared.arguments(resuming=False, seconds_left=None)
    assert first[: len(MDRUN) + len(given)] == [*MDRUN, *given]


def test_a_continuation_from_another_file_is_only_for_the_first_start() -> None:
    prepared = prepare(load_recipe("gromacs"), [*MDRUN, "-cpi", "older", "-deffnm", "md"])
    assert prepared.checkpoint == ("md.cpt",)
    assert "older" in prepared.arguments(resuming=False, seconds_left=None)
    again = prepared.arguments(resuming=True, seconds_left=None)
    assert "older" not in again
    assert again[again.index("-cpi") + 1] == "md.cpt"


@pytest.mark.parametrize(("theirs", "stays"), [("0.1", "0.1"), ("24", "0.50000")])
def test_of_two_time_limits_the_nearer_counts(theirs: str, stays: str) -> None:
    prepared = prepare(load_recipe("gromacs"), [*MDRUN, "-maxh", theirs])
    words = prepared.arguments(resuming=False, seconds_left=1800.0)
    assert words.count("-maxh") == 1
    assert words[words.index("-maxh") + 1] == stays


def test_a_first_start_has_no_restart_arguments() -> None:
    assert "-cpi" not in prepare(load_recipe("gromacs"), MDRUN).arguments(resuming=False, seconds_left=None)


def test_a_deadline_becomes_an_argument() -> None:
    arguments = prepare(load_recipe("gromacs"), MDRUN).arguments(resuming=False, seconds_left=1800.0)
    assert arguments[-2:] == ["-maxh", "0.50000"]
    assert float(prepare(load_recipe("gromacs"), MDRUN).arguments(resuming=False, seconds_left=-5)[-1]) > 0


def test_the_last_of_a_repeated_flag_counts() -> None:
    assert prepare(load_recipe("gromacs"), [*MDRUN, "-deffnm", "a", "-deffnm", "b"]).checkpoint == ("b.cpt",)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no checkpoint files"),
        ("checkpoint = ['a']\nchekpoint = 1", "unknown field 'chekpoint'"),
        ("checkpoint = 'a'", "should be a list"),
        ("checkpoint = [1]", "should be a text"),
        ("checkpoint = ['{x}.cpt']", "not one of its parameters"),
        ("checkpoint = ['{x']", "'{x'"),
        ("checkpoint = ['a']\nstop_signal = 'HELLO'", "no signal 'HELLO'"),
        ("checkpoint = ['a']\n[parameters]\nx = 3", "parameter 'x'"),
        ("checkpoint = [", "not valid TOML"),
    ],
)
def test_a_wrong_recipe_is_refused_by_name(text: str, says: str) -> None:
    with pytest.raises(SetupError, match=r"recipe 'mine'") as refused:
        parse_recipe(text, "mine")
    assert says in refused.value.message


@pytest.mark.parametrize("path", ["/etc/passwd", "../other/state", "a/../../b"])
def test_files_outside_the_working_folder_are_refused(path: str) -> None:
    with pytest.raises(SetupError, match="outside the working folder"):
        prepare(parse_recipe(f"checkpoint = ['{path}']", "mine"), ["./program"])


def test_an_unknown_recipe_names_those_that_exist() -> None:
    with pytest.raises(SetupError, match="gromacs"):
        load_recipe("gromax")
