"""The names that users type. Renaming one breaks scripts, so a change must be made here as well."""

import inspect
import subprocess
import sys

import pytest

import holdfast

EXPECTED = [
    "HoldfastError", "InternalError", "RestoreError", "Retention", "Run", "SaveError", "SetupError",
    "StoreError", "checkpoints", "load_weights", "restore",
]  # fmt: skip


def test_public_names_are_these_and_sorted() -> None:
    assert list(holdfast.__all__) == sorted(holdfast.__all__)
    assert set(EXPECTED) <= set(holdfast.__all__)


@pytest.mark.parametrize("name", EXPECTED)
def test_every_public_name_is_there_and_documented(name: str) -> None:
    thing = getattr(holdfast, name)
    assert inspect.getdoc(thing), f"{name} has no docstring"


def test_all_names_resolve_and_dir_lists_them() -> None:
    for name in holdfast.__all__:
        assert getattr(holdfast, name) is not None
    assert set(holdfast.__all__) <= set(dir(holdfast))


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Manager'"):
        _ = holdfast.Manager


def test_run_takes_the_settings_of_the_design() -> None:
    parameters = inspect.signature(holdfast.Run).parameters
    for name in ("path", "policy", "budget", "every", "max_loss", "mtbf", "tiers", "keep", "seed"):
        assert name in parameters
    assert parameters["keep"].default == 2
    assert parameters["seed"].default is None  # what torch draws decides the data
    for name in ("step", "epoch", "resumed", "save_now", "save_due", "stopping", "epochs", "batches"):
        assert hasattr(holdfast.Run, name) or name == "resumed"


def test_importing_holdfast_and_listing_checkpoints_does_not_import_torch(tmp_path: object) -> None:
    code = (
        "import sys, holdfast\n"
        f"for _ in range(2): holdfast.checkpoints({str(tmp_path)!r})\n"
        "assert 'torch' not in sys.modules, 'torch was imported'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_functions_are_not_hidden_by_packages_of_the_same_name(tmp_path: object) -> None:
    assert holdfast.Run is not None
    for _ in range(2):
        assert holdfast.checkpoints(tmp_path) == []  # type: ignore[arg-type]


def test_errors_say_what_to_do() -> None:
    error = holdfast.SetupError("cannot do this", hint="do that instead")
    assert str(error) == "cannot do this; do that instead"
    assert (error.message, error.hint) == ("cannot do this", "do that instead")


def test_every_error_descends_from_one_class() -> None:
    from holdfast import errors

    classes = [c for c in vars(errors).values() if inspect.isclass(c)]
    assert all(issubclass(c, errors.HoldfastError) for c in classes)
