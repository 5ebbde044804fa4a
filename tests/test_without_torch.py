"""An installation without torch: everything that needs none works, the rest says what to install."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy
import pytest
import torch
import xxhash

import holdfast
from holdfast import Run

SOURCE = Path(holdfast.__file__).parents[1]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of its own with numpy and xxhash alone."""
    place = tmp_path_factory.mktemp("bare") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    packages = next(place.glob("lib/python*/site-packages"))
    for package in (Path(numpy.__file__).parent, Path(xxhash.__file__).parent):
        (packages / package.name).symlink_to(package)
    libraries = Path(numpy.__file__).parents[1] / "numpy.libs"
    if libraries.exists():
        (packages / libraries.name).symlink_to(libraries)
    (packages / "holdfast.pth").write_text(str(SOURCE))
    return place / "bin" / "python"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Run(folder, model=model, optimizer=optimizer) as run:
        for _ in run.steps(3):
            optimizer.zero_grad()
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
            run.end_step()
            run.save_now().wait()
    return folder


def ask(python: Path, arguments: Sequence[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [str(python), *arguments], cwd=cwd, env=environ, capture_output=True, text=True, check=False
    )


def holds(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_environment_has_no_torch(python: Path, tmp_path: Path) -> None:
    assert "No module named 'torch'" in ask(python, ["-c", "import torch"], tmp_path).stderr


def test_import_and_names_that_need_no_torch(python: Path, tmp_path: Path) -> None:
    names = "holdfast.Retention(latest=2), holdfast.Tier('memory'), holdfast.checkpoints, holdfast.SetupError"
    holds(ask(python, ["-c", f"import holdfast; {names}"], tmp_path))


@pytest.mark.parametrize("name", ["Run", "load_weights", "restore"])
def test_a_name_that_needs_torch_says_what_to_install(python: Path, tmp_path: Path, name: str) -> None:
    done = ask(python, ["-c", f"from holdfast import {name}"], tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(
        f"holdfast.{name} needs PyTorch, which is not installed; pip install 'holdfast[torch]'"
    )


@pytest.mark.parametrize(
    "command",
    [
        ["list", "RUN"],
        ["show", "RUN"],
        ["show", "RUN", "--policy"],
        ["verify", "RUN"],
        ["diff", "RUN", "2", "newest"],
        ["prune", "RUN", "--keep", "2"],
        ["export", "RUN", "--to", "weights.safetensors"],
        ["plan", "--nodes", "4", "--mtbf", "1 d", "--state", "1 GB"],
        ["doctor", "RUN"],
        ["run", "--", "true"],
    ],
    ids=lambda command: command[0],
)
def test_a_command_that_needs_no_torch_works_without_it(
    python: Path, trained: Path, tmp_path: Path, command: list[str]
) -> None:
    words = [str(trained) if word == "RUN" else word for word in command]
    done = ask(python, ["-m", "holdfast.cli.main", *words], tmp_path)
    assert done.returncode in (0, 3), done.stderr
    assert "torch" not in done.stderr


def test_a_command_that_needs_torch_says_what_to_install(python: Path, trained: Path, tmp_path: Path) -> None:
    done = ask(python, ["-m", "holdfast.cli.main", "export", str(trained), "--to", "weights.pt"], tmp_path)
    assert done.returncode == 1
    assert "needs PyTorch, which is not installed" in done.stderr
    assert "hint: pip install 'holdfast[torch]'" in done.stderr
    assert not (tmp_path / "weights.pt").exists()
