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
