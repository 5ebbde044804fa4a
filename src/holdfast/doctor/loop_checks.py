"""What a training loop carries from step to step and no checkpoint holds, said from its source alone.

`Run` says the same when it looks at a loop that runs. Here only what the text shows for certain is said: a
count or a sum that begins with a number, a generator, an iterator over a loader. Pure.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from holdfast.doctor.finding import Finding
from holdfast.engine.loop_source import carried_at, dotted

_OURS = re.compile(r"\.(?:batches|steps|enumerate|extras|remember|resumed|step|epoch)\b")
_GENERATORS = re.compile(r"(?:^|\.)(?:Generator|default_rng|RandomState|random\.Random)\(")
_KEEPS = re.compile(r"extras|remember|get_?state|bit_generator")


def examine_loops(name: str, tree: ast.Module, runs: list[ast.Call]) -> Iterator[Finding]:
    if not runs or any(_is_silent(call) for call in runs):
        return
    kept = _kept(tree, runs)
    values = _values(tree)
    said: set[str] = set()
    for line in _boundaries(tree):
        carried = carried_at(tree, line)
        found = [
            *((variable, at, _VALUE) for variable, at in carried.names.items() if _counts(variable, values)),
            *((v, at, _ITERATOR) for v, at in carried.advanced.items() if _is_iterator(v, values)),
            *((v, _made(v, values), _GENERATOR) for v in _drawn(tree, line) if _is_generator(v, values)),
        ]
        for variable, at, (what, fix) in found:
            if variable not in said | kept:
                said.add(variable)
                yield Finding(
                    "script-loop", "warning", f"{name} line {at}: {variable} {what}",
                    fix.format(plain=variable.rpartition(".")[2], name=variable),
                )  # fmt: skip


_VALUE = (
    "is carried from step to step and not kept: a restart begins it anew (let it, if it is only printed)",
    "kept = run.remember({plain}=...) behind `with`, and kept.{plain} for {name}",
)
_ITERATOR = (
    "is read without the run: after a restart it begins anew",
    "read the loader through run.batches(loader) or run.steps(count, over=loader)",
)
_GENERATOR = (
    "is a generator that the loop draws from and no checkpoint holds: after a restart it begins anew",
    'run.extras["{plain}"] = its state before run.end_step; put back where run.resumed',
)


def _is_silent(call: ast.Call) -> bool:
    """Whoever gives a run what cannot be read here, or wants to hear nothing."""
    return any(
        keyword.arg is None or (keyword.arg == "check_loop" and ast.unparse(keyword.value) == "False")
        for keyword in call.keywords
    ) or any(isinstance(argument, ast.Starred) for argument in call.args)


def _boundaries(tree: ast.Module) -> list[int]:
    """A line in each innermost loop that ends steps: where the run is told, else behind its batches."""
    told = [call.lineno for call in _calls(tree) if _is_method(call, ("end_step",))]
    if told:
        return told
    return [
        node.body[0].lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.For)
        and any(_is_method(call, ("batches", "steps")) for call in _calls(node.iter))
    ]


def _kept(tree: ast.Module, runs: list[ast.Call]) -> set[str]:
    """What is given to a run, and what stands in a statement that keeps or brings back a value."""
    found = {name for call in runs for node in ast.walk(call) if (name := dotted(node)) is not None}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.Expr, ast.AugAssign)) and _KEEPS.search(ast.unparse(node)):
            found |= {name for part in ast.walk(node) if (name := dotted(part)) is not None}
        if isinstance(node, ast.ClassDef) and any(
            isinstance(part, ast.FunctionDef) and part.name == "state_dict" for part in node.body
        ):
            # It is saved as a whole, by whoever gives it to the run.
            found |= {name for part in ast.walk(node) if (name := dotted(part) or "").startswith("self.")}
    return found


def _values(tree: ast.Module) -> dict[str, list[ast.expr]]:
    """What each dotted name is ever given by a plain assignment."""
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(target.elts, node.value.elts, strict=False))
                for part, value in pairs:
                    if (name := dotted(part)) is not None:
                        found.setdefault(name, []).append(value)
    return found


def _counts(name: str, values: dict[str, list[ast.expr]]) -> bool:
    given = values.get(name, [])
    return any(_is_number(value) for value in given) and not any(
        _OURS.search(ast.unparse(value)) for value in given
    )


def _is_number(value: ast.expr) -> bool:
    if isinstance(value, ast.UnaryOp):
        return _is_number(value.operand)
    if isinstance(value, ast.Constant):
        return isinstance(value.value, (int, float)) and not isinstance(value.value, bool)
    return ast.unparse(value) in ("float('inf')", "math.inf", "np.inf", "torch.inf") or (
        isinstance(value, ast.Call) and ast.unparse(value.func) in ("torch.zeros", "np.zeros")
    )


def _is_iterator(name: str, values: dict[str, list[ast.expr]]) -> bool:
    for value in values.get(name, []):
        if isinstance(value, ast.Call) and dotted(value.func) == "iter" and value.args:
            source = dotted(value.args[0]) or ""
            made = [ast.unparse(given) for given in values.get(source, [])]
            if made and all(re.match(r"(?:[\w.]+\.)?DataLoader\(", text) for text in made):
                return True
    return False


def _is_generator(name: str, values: dict[str, list[ast.expr]]) -> bool:
    return any(_GENERATORS.search(ast.unparse(value)) for value in values.get(name, []) if _is_made(value))


def _is_made(value: ast.expr) -> bool:
    """The generator itself, as `torch.Generator().manual_seed(0)` is; not what was made with one."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        if _GENERATORS.search(f"{ast.unparse(value.func)}("):
            return True
        value = value.func.value
    return isinstance(value, ast.Call) and bool(_GENERATORS.search(f"{ast.unparse(value.func)}("))


def _made(name: str, values: dict[str, list[ast.expr]]) -> int:
    return min(value.lineno for value in values[name])


def _drawn(tree: ast.Module, line: int) -> list[str]:
    """Everything that the loops around this line read."""
    return sorted(
        {
            name
            for loop in ast.walk(tree)
            if isinstance(loop, (ast.For, ast.While)) and loop.lineno <= line <= (loop.end_lineno or 0)
            for statement in loop.body
            for node in ast.walk(statement)
            if (name := dotted(node)) is not None
        }
    )


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _is_method(call: ast.Call, names: tuple[str, ...]) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in names
