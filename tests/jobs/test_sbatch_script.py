"""The batch script: what it asks for, that a shell can read it, and what it does when it is run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.errors import SetupError
from holdfast.jobs.sbatch import SbatchPlan, default_warning, sbatch_script, time_limit_seconds


def plan(**changes: object) -> SbatchPlan:
    given: dict[str, object] = {
        "script": "train.py",
        "run": "runs/x",
        "time": "1:00:00",
        "warning_seconds": 300,
    }
    return SbatchPlan(**{**given, **changes})  # type: ignore[arg-type]


def directives(text: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")]


def test_a_chain_asks_for_one_task_at_a_time_a_warning_and_a_log_per_task() -> None:
    asked = directives(sbatch_script(plan(array=10)))
    assert "--array=1-10%1" in asked
    assert "--signal=USR1@300" in asked
    assert "--requeue" in asked
    assert "--open-mode=append" in asked
    assert "--output=runs/x/slurm/%x-%A_%a.log" in asked


def test_without_an_array_the_job_requeues_itself() -> None:
    text = sbatch_script(plan())
    assert not any(line.startswith("--array") for line in directives(text))
    assert 'hand-over "$run" --requeue' in text
    assert "slurm finished" not in text


def test_torchrun_leaves_the_options_of_the_script_alone(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys; print(sys.argv[1:])")
    text = sbatch_script(plan(nodes=2, script="train.py", arguments=("--run", "runs/x", "--log", "3")))
    line = next(one for one in text.splitlines() if "train.py" in one)
    torchrun = Path(sys.executable).parent / "torchrun"
    done = subprocess.run(
        f"{torchrun} --nproc-per-node=1 {line}", shell=True, cwd=tmp_path, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert "['--run', 'runs/x', '--log', '3']" in done.stdout, done.stderr


def test_several_nodes_get_one_torchrun_each_that_passes_the_warning_on() -> None:
    text = sbatch_script(plan(nodes=4, gpus_per_node=8, processes_per_node=8))
    assert "--nodes=4" in directives(text)
    assert "srun --kill-on-bad-exit=1 torchrun" in text
    assert "--nproc-per-node=8" in text
    assert "--signals-to-handle=SIGTERM,SIGINT,SIGUSR1" in text


@pytest.mark.parametrize(
    ("script", "command"),
    [("train.py", "python train.py"), ("md.sh", "bash md.sh"), ("prog", "./prog"), ("bin/prog", "bin/prog")],
)
def test_every_kind_of_program_is_started_its_own_way(script: str, command: str) -> None:
    assert f'holdfast run --run "$run" -- {command}\n' in sbatch_script(plan(script=script))


def test_all_options_come_before_the_first_command() -> None:
    """Slurm stops reading options at the first line that is not a comment."""
    lines = sbatch_script(plan(array=3, partition="gpu", extra=("--constraint=a100",))).splitlines()
    last = max(i for i, line in enumerate(lines) if line.startswith("#SBATCH"))
    assert all(line.startswith("#") for line in lines[: last + 1])


@pytest.mark.parametrize(
    "changes", [{}, {"array": 3}, {"nodes": 2}, {"arguments": ("--name", "it's; rm -rf /")}]
)
def test_a_shell_can_read_it(changes: dict[str, object]) -> None:
    text = sbatch_script(plan(**changes))
    subprocess.run(["bash", "-n"], input=text, text=True, check=True, timeout=20)


def test_arguments_reach_the_script_unchanged(tmp_path: Path) -> None:
    words = ("--name", "it's $HOME; echo `id`", "*", "")
    target = tmp_path / "show.py"
    target.write_text("import sys; open('args', 'w').write(repr(tuple(sys.argv[1:])))")
    _run_script(tmp_path, sbatch_script(plan(script=str(target), arguments=words)), work_code=0)
    assert (tmp_path / "args").read_text() == repr(words)


@pytest.mark.parametrize(
    ("array", "work_code", "asked", "code"),
    [(None, 75, "--requeue", 75), (None, 0, "--requeue", 0), (3, 75, "--chain", 75), (3, 9, "--chain", 9)],
)
def test_the_exit_code_of_the_training_is_handed_over(
    array: int | None, work_code: int, asked: str, code: int, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(f"import sys; sys.exit({work_code})")
    said = _run_script(tmp_path, sbatch_script(plan(array=array)), work_code=work_code)
    assert f"hand-over runs/x {asked} --warning=300 --code {code}" in said


def _run_script(folder: Path, text: str, *, work_code: int) -> str:
    """Run it with commands of this name that do the least: srun runs, holdfast runs or notes."""
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    commands = {
        "srun": 'exec "$@"',
        "python": f'exec {sys.executable} "$@"',
        "holdfast": f'echo "$*" >> {folder}/said\n'
        'if [ "$1" = run ]; then shift 4; exec "$@"; fi\n[ "$2" != finished ]',
    }
    for name, body in commands.items():
        (bin_folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (bin_folder / name).chmod(0o755)
    path = f"{bin_folder}:{os.environ['PATH']}"
    subprocess.run(
        ["bash"], input=text, text=True, cwd=folder, env={**os.environ, "PATH": path}, check=True, timeout=60
    )
    return (folder / "said").read_text()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800),
        ("30:10", 1810),
        ("12:00:00", 43200),
        ("2-12", 216000),
        ("1-00:30", 88200),
        ("1-0:0:5", 86405),
    ],
)
def test_limits_are_read_as_slurm_reads_them(text: str, seconds: int) -> None:
    assert time_limit_seconds(text) == seconds


@pytest.mark.parametrize(
    "wrong",
    [
        {"time": "soon"},
        {"warning_seconds": 3600},
        {"array": 0},
        {"nodes": 0},
        {"name": "a b"},
        {"run": "x$y"},
    ],
)
def test_what_slurm_would_misread_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(SetupError):
        plan(**wrong)


@pytest.mark.parametrize("limit", [60, 120, 3600, 86400])
def test_the_default_warning_fits_the_limit(limit: int) -> None:
    assert 0 < default_warning(limit) <= min(limit / 2, 600)


def test_the_command_writes_the_script_and_makes_the_folder_of_the_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    assert main(["slurm", "train.py", "--time", "12:00:00", "--array", "10", "--", "--lr", "0.1"]) == 0
    text = Path("train.sbatch").read_text()
    assert "--array=1-10%1" in text
    assert "train.py --lr 0.1" in text
    assert Path("runs/train/slurm").is_dir()
    assert "sbatch train.sbatch" in capsys.readouterr().out


def test_submitting_without_slurm_is_an_error_that_keeps_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    Path("train.py").touch()
    assert main(["slurm", "--submit", "--time", "1:00:00", "train.py"]) == 1
    assert "login node" in capsys.readouterr().err
    assert Path("train.sbatch").exists()


@pytest.mark.parametrize(
    ("text", "run"),
    [
        ('with holdfast.Run("runs/digits", model=m): pass', "runs/digits"),
        ("with Run(path='runs/digits', model=m): pass", "runs/digits"),
        ("with holdfast.Run(sys.argv[1], model=m): pass", "runs/train"),
    ],
)
def test_the_script_knows_best_which_run_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, run: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(text)
    assert main(["slurm", "train.py", "--time", "1:00:00"]) == 0
    assert f"run={run}\n" in (tmp_path / "train.sbatch").read_text()


def test_another_run_than_the_scripts_own_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text('with holdfast.Run("runs/digits", model=m): pass')
    assert main(["slurm", "train.py", "--time", "1:00:00", "--run", "./runs/digits"]) == 0
    assert main(["slurm", "train.py", "--time", "1:00:00", "--run", "runs/train"]) != 0
    assert "runs/digits" in capsys.readouterr().err
