"""What a training script does around its Run that keeps it from continuing: a path that changes, state that
is not tracked, a stop that is swallowed. Pure; certain from the text, or not said."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from holdfast.doctor.finding import Finding

# What is another value in every process, or gone with the job.
_CHANGES = re.compile(
    r"datetime|strftime|time\.time|uuid|mkdtemp|tempfile|getpid|SLURM_JOB_?ID|PBS_JOBID|LSB_JOBID|\bJOB_ID|TMPDIR"
)
_STATEFUL = re.compile(r"(?:^|\.)(?:optim\.[A-Z]\w*|lr_scheduler\.[A-Z]\w*|GradScaler|AveragedModel)$")
_MODULES = ("torch.optim", "torch.optim.lr_scheduler", "torch.optim.swa_utils", "torch.amp", "torch.cuda.amp")
_ALL = {"BaseException", "SystemExit"}


def examine_training(name: str, tree: ast.Module, runs: list[ast.Call]) -> Iterator[Finding]:
    for call in runs:
        yield from _path(name, tree, call)
        yield from _untracked(name, tree, call)
    yield from _swallowed(name, tree, runs)


def _path(name: str, tree: ast.Module, call: ast.Call) -> Iterator[Finding]:
    given = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    path = call.args[0] if call.args else given.get("path")
    if path is None or isinstance(path, ast.Constant):
        return
    text = ast.unparse(path)
    values = _assigned(tree)
    for variable in {node.id for node in ast.walk(path) if isinstance(node, ast.Name)}:
        text += "".join(f" {ast.unparse(value)}" for value in values.get(variable, ()))
    if found := _CHANGES.search(text):
        yield Finding(
            "script-run-path", "problem",
            f"{name} line {call.lineno}: the run's path comes from {found[0]} and is another one in every "
            "process, so that each starts anew", "give the run one name that stays",
        )  # fmt: skip


def _untracked(name: str, tree: ast.Module, call: ast.Call) -> Iterator[Finding]:
    if any(keyword.arg is None for keyword in call.keywords) or any(
        isinstance(argument, ast.Starred) for argument in call.args
    ):
        return
    scope = _scope(tree, call)
    values = _assigned(scope)
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in _MODULES
        for alias in node.names
        if alias.name[:1].isupper()
    }

    def kind_of(value: ast.expr) -> str | None:
        made = ast.unparse(value.func) if isinstance(value, ast.Call) else ""
        return made if made in imported or _STATEFUL.search(made) else None

    tracked = {node.id for node in ast.walk(call) if isinstance(node, ast.Name)}
    # Once through variables: a list of optimizers, a bundle that holds them. A scheduler holds its optimizer
    # as well, and does not save it.
    for variable in list(tracked):
        for value in values.get(variable, ()):
            if kind_of(value) is None:
                tracked |= {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
    for variable, assigned in values.items():
        made = [value for value in assigned if kind_of(value)]
        kind = kind_of(made[0]) if made else None
        if kind is not None and variable not in tracked:
            yield Finding(
                "script-untracked", "problem",
                f"{name} line {made[0].lineno}: {variable} ({kind.rpartition('.')[2]}) is not given to Run: "
                "after a restart it begins anew", f"holdfast.Run(..., {variable}={variable})",
            )  # fmt: skip


def _swallowed(name: str, tree: ast.Module, runs: list[ast.Call]) -> Iterator[Finding]:
    wanted = {id(call) for call in runs}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Try):
            continue
        inside = {id(one) for statement in node.body for one in ast.walk(statement)}
        for handler in node.handlers if inside & wanted else ():
            kinds = (
                {one.id for one in ast.walk(handler.type) if isinstance(one, ast.Name)}
                if handler.type
                else _ALL
            )
            raises = any(isinstance(one, ast.Raise) for one in ast.walk(handler))
            if kinds & _ALL and not raises:
                yield Finding(
                    "script-exit", "problem",
                    f"{name} line {handler.lineno}: this also catches the end of a run that was asked to "
                    "stop, and turns its exit code 75, run me again, into another",
                    "catch Exception, or raise again",
                )  # fmt: skip


def _scope(tree: ast.Module, call: ast.Call) -> ast.Module | ast.FunctionDef:
    inner: ast.Module | ast.FunctionDef = tree
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any(one is call for one in ast.walk(node)):
            inner = node
    return inner


def _assigned(scope: ast.Module | ast.FunctionDef) -> dict[str, list[ast.expr]]:
    """Variables of exactly this scope, and what they were ever given."""
    found: dict[str, list[ast.expr]] = {}

    def walk(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
                continue
            if isinstance(child, ast.Assign):
                for target in child.targets:
                    if isinstance(target, ast.Name):
                        found.setdefault(target.id, []).append(child.value)
            walk(child)

    walk(scope)
    return found
