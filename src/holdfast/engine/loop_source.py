"""What a training loop carries from one step to the next, read from its source. Pure.

A name is carried if an iteration may read it before that iteration has written it, and some iteration writes
it: `total += loss`, `best = min(best, loss)`, `x, y = get_batch()` at the loop's end. What an iteration
writes before it reads is made anew by every step, and no checkpoint needs it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

_CLOCKS = {"time", "perf_counter", "monotonic", "process_time", "now", "utcnow", "time_ns", "perf_counter_ns"}
# What hands out data of ours: run.batches(loader) and its like.
_OURS = {"batches", "steps", "enumerate", "epochs"}
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Carried:
    """What the loops around a line carry: dotted names as they are written there, with the line of a write.

    `read_directly` are the things that a `for` goes over without holdfast, `advanced` those given to `next`,
    `targets` what a `for` sets anew each time.
    """

    names: dict[str, int] = field(default_factory=dict)
    read_directly: dict[str, int] = field(default_factory=dict)
    advanced: dict[str, int] = field(default_factory=dict)
    targets: frozenset[str] = frozenset()


def dotted(node: ast.AST) -> str | None:
    """`self.meter.total` for such an expression, None for any other."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return None if before is None else f"{before}.{node.attr}"
    return None


def carried_at(tree: ast.AST, line: int) -> Carried:
    """What the loops around `line` carry, in the innermost function that holds it."""
    loops = list(_loops_around(_function_around(tree, line), line))
    names: dict[str, int] = {}
    clocks: set[str] = set()
    for loop in loops:
        clocks |= _clock_names(loop)
        for name, where in carried_by(loop).items():
            names.setdefault(name, where)
    read = {name: loop.lineno for loop in loops for name in _read_directly(loop)}
    targets = frozenset(name for loop in loops for name in _set_by(loop))
    kept = {name: at for name, at in names.items() if name not in clocks | targets}
    return Carried(kept, read, dict(_advanced(loops)), targets)


def updated_attributes(tree: ast.AST) -> set[str]:
    """Attributes of `self` that some method of a class makes out of themselves: counters, sums, states."""
    found = set()
    for function in (node for node in ast.walk(tree) if isinstance(node, _FUNCTIONS)):
        clocks = _clock_names(function)
        for name in _carried_through(function.body):
            if name.startswith("self.") and name.count(".") == 1 and name not in clocks:
                found.add(name.removeprefix("self."))
    return found


def assignments(tree: ast.AST) -> dict[str, int]:
    """Where each dotted name is given its value for the first time: where the user made it."""
    found: dict[str, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for part in _targets(target):
                    name = dotted(part)
                    if name is not None:
                        found[name] = min(node.lineno, found.get(name, node.lineno))
    return found


# ---- which loops


def _function_around(tree: ast.AST, line: int) -> ast.AST:
    inside = [
        node for node in ast.walk(tree)
        if isinstance(node, _FUNCTIONS) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]  # fmt: skip
    return max(inside, key=lambda node: node.lineno, default=tree)


def _loops_around(scope: ast.AST, line: int) -> Iterator[ast.For | ast.AsyncFor | ast.While]:
    for node in ast.walk(scope):
        if isinstance(node, _LOOPS) and node.lineno <= line <= (node.end_lineno or node.lineno):
            yield node


def carried_by(loop: ast.For | ast.AsyncFor | ast.While) -> dict[str, int]:
    """The names that this loop carries, each with a line that writes it."""
    body: list[ast.stmt] = list(loop.body)
    if isinstance(loop, ast.While):
        body.insert(0, ast.copy_location(ast.Expr(loop.test), loop))
    heads = _set_by(loop)
    return {name: line for name, line in _carried_through(body).items() if name not in heads}


def _set_by(loop: ast.For | ast.AsyncFor | ast.While) -> set[str]:
    return set() if isinstance(loop, ast.While) else {n for t in _targets(loop.target) if (n := dotted(t))}


def _carried_through(body: Sequence[ast.stmt]) -> dict[str, int]:
    flow = _Flow()
    flow.block(body, set())
    return {name: line for name, line in flow.written.items() if name in flow.read_first}


def _read_directly(loop: ast.AST) -> Iterator[str]:
    if not isinstance(loop, (ast.For, ast.AsyncFor)):
        return
    waiting: list[ast.AST] = [loop.iter]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and node.func.attr in _OURS:
                continue
            waiting += [*node.args, *(keyword.value for keyword in node.keywords)]
        elif (name := dotted(node)) is not None:
            yield name


def _advanced(loops: Iterable[ast.AST]) -> Iterator[tuple[str, int]]:
    for node in (node for loop in loops for node in ast.walk(loop)):
        if isinstance(node, ast.Call) and dotted(node.func) == "next" and node.args:
            name = dotted(node.args[0])
            if name is not None:
                yield name, node.lineno


# ---- what is read before it is written


class _Flow:
    """Walks statements in their order; knows what every path so far has certainly written."""

    def __init__(self) -> None:
        self.read_first: set[str] = set()
        self.written: dict[str, int] = {}

    def block(self, body: Iterable[ast.stmt], done: set[str]) -> set[str]:
        for statement in body:
            done = self._statement(statement, done)
        return done

    def _statement(self, node: ast.stmt, done: set[str]) -> set[str]:
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            return done | {node.name}
        if isinstance(node, ast.If):
            self._reads(node.test, done)
            yes, no = self.block(node.body, set(done)), self.block(node.orelse, set(done))
            # A path that leaves the iteration decides nothing about what follows.
            if _leaves(node.body):
                return no
            return yes if _leaves(node.orelse) else yes & no
        if isinstance(node, (ast.For, ast.AsyncFor)):
            self._reads(node.iter, done)
            # An inner loop runs at least once, as far as anybody can tell.
            inside = set(done)
            self._write(node.target, inside, node.lineno)
            return self.block(node.orelse, self.block(node.body, inside))
        if isinstance(node, ast.While):
            self._reads(node.test, done)
            return self.block(node.body, set(done))
        if isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                self._reads(item.context_expr, done)
                if item.optional_vars is not None:
                    self._write(item.optional_vars, done, node.lineno)
            return self.block(node.body, done)
        if isinstance(node, ast.Try):
            tried = self.block(node.body, set(done))
            for handler in node.handlers:
                caught = self.block(handler.body, set(done))
                tried = tried if _leaves(handler.body) else tried & caught
            return self.block(node.finalbody, self.block(node.orelse, tried))
        return self._simple(node, done)

    def _simple(self, node: ast.stmt, done: set[str]) -> set[str]:
        done = set(done)
        if isinstance(node, ast.AugAssign):
            self._reads(node.value, done)
            if (name := dotted(node.target)) is not None and name not in done:
                self.read_first.add(name)
            self._write(node.target, done, node.lineno)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            if node.value is not None:
                self._reads(node.value, done)
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                self._write(target, done, node.lineno)
        else:
            self._reads(node, done)
        return done

    def _reads(self, node: ast.AST, done: set[str]) -> None:
        bound = {
            part.id
            for inner in ast.walk(node) if isinstance(inner, ast.comprehension)
            for part in ast.walk(inner.target) if isinstance(part, ast.Name)
        }  # fmt: skip
        for part in ast.walk(node):
            if isinstance(part, ast.NamedExpr):
                self._write(part.target, done, part.lineno)
            name = dotted(part)
            if name is None or not isinstance(getattr(part, "ctx", None), ast.Load) or name in bound:
                continue
            pieces = name.split(".")
            if not any(".".join(pieces[: i + 1]) in done for i in range(len(pieces))):
                self.read_first.add(name)

    def _write(self, target: ast.expr, done: set[str], line: int) -> None:
        for part in _targets(target):
            name = dotted(part)
            if name is not None:
                self.written.setdefault(name, line)
                done.add(name)
            elif isinstance(part, ast.Subscript) and (name := dotted(part.value)) is not None:
                # A part of it is new; the rest is what it was.
                self._reads(part.slice, done)
                if name not in done:
                    self.read_first.add(name)
                self.written.setdefault(name, line)


def _leaves(body: Sequence[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], (ast.Continue, ast.Break, ast.Return, ast.Raise))


def _targets(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, (ast.Tuple, ast.List)):
        for element in target.elts:
            yield from _targets(element)
    elif isinstance(target, ast.Starred):
        yield from _targets(target.value)
    else:
        yield target


def _clock_names(scope: ast.AST) -> set[str]:
    """What holds a time of day, and what is copied or computed from it alone: no state of training."""
    assigned = [node for node in ast.walk(scope) if isinstance(node, ast.Assign)]
    found: set[str] = set()
    for _ in range(2):
        for node in assigned:
            calls = {
                part.func.attr if isinstance(part.func, ast.Attribute) else dotted(part.func)
                for part in ast.walk(node.value) if isinstance(part, ast.Call)
            }  # fmt: skip
            if calls & _CLOCKS or dotted(node.value) in found:
                found |= {n for target in node.targets for t in _targets(target) if (n := dotted(t))}
    return found
