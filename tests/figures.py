"""Figures of the source: how much there is, how it hangs together, how far one save and one restore go.

`python tests/figures.py` prints them, `--json` as JSON, `--names` with what was counted. `test_figures.py`
holds the limits. Everything but the two walks is read from the text of `src`; the walks run a small training.
"""

from __future__ import annotations

import ast
import json
import re
import statistics
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

SOURCE = Path(__file__).parent.parent / "src" / "holdfast"
LARGE_MODULE = 400
# What the objects for "all ranks" and "all tiers" are called, as attribute or variable.
_TEAM_OR_TIERS = re.compile(r"_?(team|together|tiers|tier_list|drain|copies_of_node|node_tiers)")
_STORE_VERBS = {"names", "manifest", "open"}


@dataclass(frozen=True)
class Figures:
    lines: int
    files: int
    files_per_folder_median: float
    files_per_folder_largest: int
    large_modules: int
    import_cycles: int
    modules_in_cycles: int
    file_names_used_twice: int
    class_names_used_twice: int
    isinstance_on_stores: int
    branches_on_team_or_tiers: int
    files_of_one_save: int
    files_of_one_restore: int
    names: dict[str, Any] = field(default_factory=dict)


def figures() -> Figures:
    texts = {path: path.read_text() for path in sorted(SOURCE.rglob("*.py"))}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    lines = {_short(path): text.count("\n") for path, text in texts.items()}
    folders: dict[str, int] = defaultdict(int)
    for path in texts:
        folders[path.parent.relative_to(SOURCE.parent).as_posix()] += 1
    large = {name: count for name, count in lines.items() if count > LARGE_MODULE}
    cycles = import_cycles(trees)
    files_twice = _used_twice((path.stem, _short(path)) for path in texts if path.stem != "__init__")
    classes_twice = _used_twice(
        (node.name, _short(path))
        for path, tree in trees.items()
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    )
    asked, branches = _asked_for_store_class(trees), _branches(trees)
    walks = walk()
    return Figures(
        lines=sum(lines.values()),
        files=len(lines),
        files_per_folder_median=statistics.median(folders.values()),
        files_per_folder_largest=max(folders.values()),
        large_modules=len(large),
        import_cycles=len(cycles),
        modules_in_cycles=sum(len(cycle) for cycle in cycles),
        file_names_used_twice=len(files_twice),
        class_names_used_twice=len(classes_twice),
        isinstance_on_stores=len(asked),
        branches_on_team_or_tiers=len(branches),
        files_of_one_save=len(walks["save"]),
        files_of_one_restore=len(walks["restore"]),
        names={
            "folders": dict(folders),
            "large_modules": large,
            "import_cycles": cycles,
            "file_names_used_twice": files_twice,
            "class_names_used_twice": classes_twice,
            "isinstance_on_stores": asked,
            "branches_on_team_or_tiers": branches,
            "files_of_one_save": walks["save"],
            "files_of_one_restore": walks["restore"],
        },
    )


def _short(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def _used_twice(named: Iterator[tuple[str, str]]) -> dict[str, list[str]]:
    """Names with more than one home."""
    homes: dict[str, list[str]] = defaultdict(list)
    for name, home in named:
        homes[name].append(home)
    return {name: where for name, where in homes.items() if len(where) > 1}


# ---- import cycles: an import inside a function and one for the type checker count as well


def import_cycles(trees: dict[Path, ast.Module]) -> list[list[str]]:
    """Groups of modules that all reach each other by imports."""
    modules = {_dotted(path): tree for path, tree in trees.items()}
    return _strongly_connected({name: set(_imported(tree, set(modules))) for name, tree in modules.items()})


def _dotted(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(tree: ast.Module, modules: set[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module:
            named = {f"{node.module}.{alias.name}" for alias in node.names} & modules
            yield from named or {node.module} & modules


def _strongly_connected(graph: dict[str, set[str]]) -> list[list[str]]:
    """Tarjan's components of more than one module, without recursion."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []
    for root in graph:
        work = [(root, iter(sorted(graph[root])))] if root not in order else []
        while work:
            node, targets = work[-1]
            if node not in order:
                order[node] = low[node] = len(order)
                stack.append(node)
            for target in targets:
                if target not in order:
                    work.append((target, iter(sorted(graph[target]))))
                    break
                if target in stack:
                    low[node] = min(low[node], order[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == order[node]:
                    cut = stack.index(node)
                    group, stack[cut:] = stack[cut:], []
                    if len(group) > 1:
                        found.append(sorted(group))
    return sorted(found)


# ---- questions that seams should make needless


def _asked_for_store_class(trees: dict[Path, ast.Module]) -> list[str]:
    """Places that ask an object whether it is of one class of stores."""
    classes = [node for tree in trees.values() for node in tree.body if isinstance(node, ast.ClassDef)]
    stores: set[str] = set()
    # What inherits from a store is one too, and so on.
    for _ in range(4):
        for node in classes:
            verbs = {child.name for child in node.body if isinstance(child, ast.FunctionDef)}
            bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
            if verbs >= _STORE_VERBS or bases & stores:
                stores.add(node.name)
    return [
        f"{_short(path)}:{node.lineno}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("isinstance", "issubclass")
        and {one.id for one in ast.walk(node.args[1]) if isinstance(one, ast.Name)} & stores
    ]


def _branches(trees: dict[Path, ast.Module]) -> list[str]:
    """Places that ask whether there are other ranks or other tiers at all."""
    found = set()
    for path, tree in trees.items():
        for node in ast.walk(tree):
            tests: list[ast.expr] = []
            if isinstance(node, (ast.If, ast.IfExp, ast.While, ast.Assert)):
                tests = [node.test]
            elif isinstance(node, ast.BoolOp):
                tests = node.values
            elif isinstance(node, ast.Compare) and _is_none(node):
                tests = [node]
            if any(_asks_for_presence(test) for test in tests):
                found.add(f"{_short(path)}:{node.lineno}")
    return sorted(found)


def _is_none(node: ast.Compare) -> bool:
    compared = node.comparators[0]
    is_none = isinstance(compared, ast.Constant) and compared.value is None
    return isinstance(node.ops[0], (ast.Is, ast.IsNot)) and is_none


def _asks_for_presence(test: ast.expr) -> bool:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _asks_for_presence(test.operand)
    if isinstance(test, ast.Compare):
        return _is_none(test) and _asks_for_presence(test.left)
    name = test.id if isinstance(test, ast.Name) else test.attr if isinstance(test, ast.Attribute) else ""
    return _TEAM_OR_TIERS.fullmatch(name) is not None


# ---- one save and one restore, walked by a real run


def walk() -> dict[str, list[str]]:
    """Files in which a function ran, in a process of its own: its profiler sees every thread."""
    done = subprocess.run(
        [sys.executable, __file__, "--walk"], capture_output=True, text=True, check=False, timeout=300
    )
    if done.returncode:
        raise RuntimeError(f"the small training failed:\n{done.stderr}")
    walked: dict[str, list[str]] = json.loads(done.stdout)
    return walked


class _Walked:
    """The files of `src` in which a function was called while this was on, by any thread."""

    def __init__(self) -> None:
        self._files: set[str] = set()
        self.start()
        self.is_on = False

    def start(self) -> None:
        # Threads that start later take it from here; it notes nothing until it is on.
        threading.setprofile(self._called)
        sys.setprofile(self._called)
        self.is_on = True

    def _called(self, frame: FrameType, event: str, _: object) -> None:
        # Loading a module, and the body of a class, are not a way that data takes.
        code = frame.f_code
        if self.is_on and event == "call" and code.co_flags & 0x02:
            self._files.add(code.co_filename)

    def taken(self) -> list[str]:
        self.is_on = False
        inside = sorted(_short(Path(file)) for file in self._files if Path(file).is_relative_to(SOURCE))
        self._files = set()
        return inside


def _walk_here() -> dict[str, list[str]]:
    """A save: on the training thread the few steps around it, on other threads until the run is closed.

    A restore: `Run(...)` and entering it. One process, one folder, a loader."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    import holdfast

    walked = _Walked()
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    data = DataLoader(TensorDataset(torch.zeros(64, 8)), batch_size=2, shuffle=True)
    with tempfile.TemporaryDirectory() as folder:
        # The look at a loop's first steps is no part of a save.
        with holdfast.Run(folder, model=model, optimizer=optimizer, every="5 steps", check_loop=False) as run:
            for (x,) in run.batches(data):
                model(x).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                walked.is_on = run.step > 0
                run.end_step()
                if run.step == 1:
                    # Not walked: the first save lays out the images. Durable, or the next would be put off.
                    run.save_now().wait()
                elif run.step == 7:
                    sys.setprofile(None)
                    break
        steps = [checkpoint.step for checkpoint in holdfast.checkpoints(folder)]
        assert len(steps) > 1, f"there was no second save: {steps}"
        save = walked.taken()
        walked.start()
        with holdfast.Run(folder, model=model, optimizer=optimizer, every="5 steps", check_loop=False):
            restore = walked.taken()
    return {"save": save, "restore": restore}


def main(arguments: list[str]) -> None:
    if "--walk" in arguments:
        print(json.dumps(_walk_here()))
        return
    counted = asdict(figures())
    names = counted.pop("names")
    if "--json" in arguments:
        print(json.dumps({**counted, "names": names}, indent=1))
        return
    for name, count in counted.items():
        print(f"{name.replace('_', ' '):<28}{count:>8,}")
        if "--names" in arguments and name in names:
            found = names[name]
            rows = found.items() if isinstance(found, dict) else enumerate(found)
            print(
                "\n".join(f"    {one}" if isinstance(one, str) else f"    {key}: {one}" for key, one in rows)
            )


if __name__ == "__main__":
    main(sys.argv[1:])
