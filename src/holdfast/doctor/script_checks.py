"""Reads a training script, without running it, for mistakes that cost work later. Pure.

Only what is certain from the text is said: a value that is computed at run time is passed over.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from holdfast.doctor.batch_checks import examine_batch
from holdfast.doctor.finding import Finding
from holdfast.doctor.loop_checks import examine_loops
from holdfast.doctor.training_checks import examine_training

_RUN_NAMES = {"Run", "holdfast.Run"}
_VOLATILE = ("/tmp/", "/dev/shm/", "/var/tmp/", "/run/")


def examine_script(name: str, text: str) -> list[Finding]:
    """Python by its name, batch scripts by what they say to a scheduler; nothing about anything else."""
    found = list(_python(name, text)) if name.endswith(".py") else list(examine_batch(name, text))
    return sorted(found, key=lambda finding: finding.severity != "problem")


def run_folder_in(text: str) -> str | None:
    """The folder that a training script gives to its only Run, if it stands there in plain words."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return None
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    runs = [call for call in calls if ast.unparse(call.func) in _RUN_NAMES]
    if len(runs) != 1:
        return None
    path = _path_of(runs[0])
    return path if isinstance(path, str) and path else None


def _path_of(call: ast.Call) -> object:
    given = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    return _constant(call.args[0]) if call.args else _constant(given.get("path"))


# ---- Python


def _python(name: str, text: str) -> Iterator[Finding]:
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        yield Finding("script-syntax", "problem", f"{name} line {error.lineno}: {error.msg}", "correct it")
        return
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    runs = [call for call in calls if ast.unparse(call.func) in _RUN_NAMES]
    if not runs:
        if any(ast.unparse(call.func) == "torch.save" for call in calls):
            yield Finding(
                "script-torch-save", "warning",
                f"{name} saves with torch.save: neither durable nor checked, and training stands still",
                "open a holdfast.Run around the loop; see the README",
            )  # fmt: skip
        return
    used_in_with = {
        id(item.context_expr) for node in ast.walk(tree) if isinstance(node, ast.With) for item in node.items
    }
    for call in runs:
        yield from _run_call(name, call, opened=id(call) in used_in_with or _entered(tree, call))
    yield from examine_training(name, tree, runs)
    yield from examine_loops(name, tree, runs)
    yield from _loops(name, tree, calls)
    yield from _handlers(name, calls)


def _run_call(name: str, call: ast.Call, *, opened: bool) -> Iterator[Finding]:
    line = f"{name} line {call.lineno}"
    given = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    path = _path_of(call)
    if isinstance(path, str) and path.startswith(_VOLATILE):
        yield Finding(
            "script-location", "problem", f"{line}: {path!r} is cleared at a reboot, or sooner",
            "use a folder that lasts",
        )  # fmt: skip
    keep = _constant(given.get("keep"))
    if isinstance(keep, int) and keep < 2:
        yield Finding(
            "script-keep", "problem", f"{line}: keep={keep} leaves nothing to fall back on", "keep=2 or more"
        )
    tiers = given.get("tiers")
    places = [_constant(place) for place in tiers.elts] if isinstance(tiers, (ast.List, ast.Tuple)) else []
    if places and all(isinstance(p, str) and (p == "memory" or p.startswith(_VOLATILE)) for p in places):
        yield Finding(
            "script-tiers", "problem", f"{line}: no tier of {places} outlives this machine",
            "add a shared folder or an object store as the last tier",
        )  # fmt: skip
    every = _constant(given.get("every"))
    if every in (1, "1 step", "1 steps"):
        yield Finding(
            "script-every", "warning", f"{line}: saving at every step spends more than it can save",
            'leave every= out, or say how much you can lose: max_loss="10 min"',
        )  # fmt: skip
    if not opened:
        yield Finding(
            "script-with", "problem", f"{line}: the run is never opened, so nothing is restored or saved",
            "with holdfast.Run(...) as run:",
        )  # fmt: skip
    if not {"model", "optimizer"} & set(given) and not any(k.arg is None for k in call.keywords):
        tracked = set(given) - _SETTINGS
        if not tracked:
            yield Finding(
                "script-nothing-tracked", "problem", f"{line}: no model, optimizer or other object is given",
                "holdfast.Run(path, model=model, optimizer=optimizer)",
            )  # fmt: skip


_SETTINGS = {
    "path", "policy", "budget", "every", "max_loss", "mtbf", "tiers", "keep", "seed", "on_save_error", "copy",
    "memory_limit", "save_frozen", "seed_samples", "audit_data", "wait_limit", "clock", "deadline", "spot",
    "on_stop",
}  # fmt: skip


def _entered(tree: ast.Module, call: ast.Call) -> bool:
    """`run = holdfast.Run(...)` and later `with run:`, or an ExitStack, or handed on: not ours to judge."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and node.value is call and isinstance(node.targets[0], ast.Name):
            variable = node.targets[0].id
            return any(
                isinstance(other, ast.With)
                and any(ast.unparse(i.context_expr) == variable for i in other.items)
                for other in ast.walk(tree)
            ) or f"enter_context({variable})" in ast.unparse(tree)
    return not any(isinstance(node, ast.Expr) and node.value is call for node in ast.walk(tree))


def _loops(name: str, tree: ast.Module, calls: list[ast.Call]) -> Iterator[Finding]:
    """A loader that is iterated directly starts from the front after every restart."""
    if any(isinstance(call.func, ast.Attribute) and call.func.attr in ("batches", "steps") for call in calls):
        return
    loaders = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func).endswith("DataLoader")
        for target in node.targets
        if isinstance(target, ast.Name)
    }  # fmt: skip
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.For)
            and {n.id for n in ast.walk(node.iter) if isinstance(n, ast.Name)} & loaders
        ):
            yield Finding(
                "script-data", "problem",
                f"{name} line {node.lineno}: the loader is read directly, so a restart repeats data",
                "for batch in run.batches(loader):",
            )  # fmt: skip
            return


def _handlers(name: str, calls: list[ast.Call]) -> Iterator[Finding]:
    for call in calls:
        if ast.unparse(call.func) == "signal.signal" and call.args:
            which = ast.unparse(call.args[0])
            if which in ("signal.SIGTERM", "signal.SIGINT"):
                yield Finding(
                    "script-signals", "warning",
                    f"{name} line {call.lineno}: a handler for {which} may keep holdfast from saving",
                    "leave the signal to holdfast and ask run.stopping",
                )  # fmt: skip


def _constant(node: ast.expr | None) -> object:
    return node.value if isinstance(node, ast.Constant) else None
