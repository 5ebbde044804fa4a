"""The row rule of ARCHITECTURE.md, read from the source: imports go up, never sideways or down."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "holdfast"
ROWS = [
    {"errors", "clock", "units", "events"},
    {"policy", "format", "redundancy"},
    {"stores", "jobs", "ranks"},
    {"checkpoints"},
    {"tiers", "contents"},
    {"capture", "staging", "data"},
    {"engine"},
    {"integrations", "plan", "programs", "doctor", "keeper"},
    {"cli"},
]
ROW_OF = {name: number for number, names in enumerate(ROWS) for name in names}
# Two words for one thing on each side of a seam would be worse than these.
WITHIN_ROW_ZERO = {("units", "errors")}
# Libraries every installation has, and the one file that may import each of the others.
ANYWHERE = {"numpy", "holdfast"}
CORE_IN_ONE_FILE = {"xxhash": "format/checksum.py"}
LIBRARIES = sys.stdlib_module_names | ANYWHERE | {"torch"} | set(CORE_IN_ONE_FILE)
# Rows that compute and never look at the world.
PURE = {"policy", "format", "redundancy"}
IMPURE_MODULES = {
    "time",
    "os",
    "socket",
    "subprocess",
    "threading",
    "random",
    "tempfile",
    "shutil",
    "pathlib",
}


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def package_of(path: Path) -> str:
    relative = path.relative_to(SOURCE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def _type_checking_nodes(tree: ast.Module) -> set[int]:
    """Imports for the type checker only: they do not happen."""
    inside: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            inside.update(id(child) for statement in node.body for child in ast.walk(statement))
    return inside


def _module_level_nodes(tree: ast.Module) -> set[int]:
    found: set[int] = set()

    def visit(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                found.add(id(child))
                visit(child)

    visit(tree)
    return found


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """(dotted name, whether it happens when the module is imported) of every real import."""
    tree = ast.parse(path.read_text(), str(path))
    skipped, top = _type_checking_nodes(tree), _module_level_nodes(tree)
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) in top
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            yield node.module, id(node) in top
            # `from holdfast import errors` names a module behind the import.
            if node.module == "holdfast":
                for alias in node.names:
                    yield f"holdfast.{alias.name}", id(node) in top


def violations(path: Path) -> list[str]:
    here = package_of(path)
    found = []
    for name, at_import in imports(path):
        top = name.partition(".")[0]
        if top == "holdfast" and name.count("."):
            target = name.split(".")[1]
            if target == "testing" and here != "testing":
                found.append(f"imports {name}: doubles are for tests")
            elif here not in ("testing", "__init__") and not _may_import(here, target):
                found.append(f"imports {name}: {here} stands above or beside {target}")
        elif top == "torch" and at_import and not path.name.startswith("torch_"):
            found.append("imports torch when it is loaded, and is not called torch_*.py")
        elif top in CORE_IN_ONE_FILE and CORE_IN_ONE_FILE[top] != path.relative_to(SOURCE).as_posix():
            found.append(f"imports {top}, which belongs to {CORE_IN_ONE_FILE[top]}")
        elif here in PURE and top in IMPURE_MODULES:
            found.append(f"imports {top} in a pure row")
        elif top not in LIBRARIES and top not in path.stem:
            found.append(f"imports {top}, an optional library, in a file that does not carry its name")
    return found


def _may_import(here: str, target: str) -> bool:
    if here == target or target == "__version__":
        return True
    if here not in ROW_OF or target not in ROW_OF:
        return False
    if ROW_OF[here] == 0:
        return (here, target) in WITHIN_ROW_ZERO
    return ROW_OF[target] < ROW_OF[here]


@pytest.mark.parametrize("path", modules(), ids=lambda p: p.relative_to(SOURCE).as_posix())
def test_imports_go_up(path: Path) -> None:
    assert violations(path) == []


def test_every_package_has_a_row() -> None:
    packages = {package_of(path) for path in modules()} - {"__init__", "testing", "py.typed"}
    assert packages <= set(ROW_OF), f"no row for {packages - set(ROW_OF)}"


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("policy/wrong.py", "from holdfast.stores.base import Store"),
        ("policy/wrong.py", "import time"),
        ("capture/wrong.py", "from holdfast.staging.slots import Slot"),
        ("engine/wrong.py", "import torch"),
        ("engine/wrong.py", "if True:\n    import torch.nn"),
        ("stores/wrong.py", "import boto3"),
        ("stores/wrong.py", "import xxhash"),
        ("engine/torch_wrong.py", "from holdfast.testing.fake_clock import FakeClock"),
        ("errors.py", "from holdfast.events import Event"),
        ("cli/wrong.py", "from holdfast.unheard_of import x"),
    ],
)
def test_the_rule_notices(file: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "SOURCE", tmp_path)
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    assert violations(path) != []


def test_type_checking_imports_and_late_torch_imports_are_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "SOURCE", tmp_path)
    path = tmp_path / "engine" / "fine.py"
    path.parent.mkdir()
    path.write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    import torch\n"
        "def late():\n    import torch\n    return torch\n"
    )
    assert violations(path) == []


def test_no_pickle_in_the_source() -> None:
    for path in modules():
        names = {name.partition(".")[0] for name, _ in imports(path)}
        assert not names & {"pickle", "dill", "cloudpickle", "marshal", "shelve"}, path
        for word in ("torch.save(", "torch.load(", "allow_pickle=True"):
            if word in path.read_text():
                # Exporting to and measuring against torch's own files is what these words are for.
                assert package_of(path) in ("cli", "integrations"), f"{path}: {word}"
