"""What README and docs say, happens: Python blocks run, command lines parse, links lead somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch

import holdfast
from holdfast.cli.main import _parser

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *(ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")),
]
PAGES += sorted((ROOT / "docs").glob("*.md"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")


def blocks(page: Path, kind: str) -> list[str]:
    return [text for found, text in BLOCK.findall(page.read_text()) if found == kind]


def training_objects() -> dict[str, object]:
    """What the pages leave to the reader: a small model, its optimizer, a loader."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    opt = torch.optim.AdamW(model.parameters())
    data = torch.utils.data.TensorDataset(torch.randn(96, 8), torch.randint(0, 3, (96,)))
    return {
        "model": model,
        "opt": opt,
        "optimizer": opt,
        "sched": torch.optim.lr_scheduler.CosineAnnealingLR(opt, 100),
        "loader": torch.utils.data.DataLoader(data, batch_size=8, shuffle=True),
        "validate": lambda model: 0.5,
        "loss_fn": torch.nn.functional.cross_entropy,
        "path": "runs/example",
        "DataLoader": torch.utils.data.DataLoader,
        "dataset": data,
        "files": ["a", "b"],
        "MyLoader": lambda files, seed, skip: iter(range(skip, 5)),
    }


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python")], ids=lambda p: p.name)
def test_the_python_on_this_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = training_objects()
    # Pages that explain one part of a loop leave the opening of the run to the README.
    with holdfast.Run("runs/open", model=names["model"], optimizer=names["opt"]) as run:
        names["run"] = run
        for number, code in enumerate(blocks(page, "python")):
            exec(compile(f"import holdfast\n{code}", f"{page.name}, block {number}", "exec"), names)


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "sh")], ids=lambda p: p.name)
def test_the_commands_on_this_page_exist(page: Path) -> None:
    for text in blocks(page, "sh"):
        for line in text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["holdfast"]:
                _parser(words[1:]).parse_args(words[1:])
            elif words[:1] == ["make"]:
                assert f"\n{words[1]}:" in (ROOT / "Makefile").read_text(), line


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_the_links_on_this_page_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_readme_can_be_run_by_its_twentieth_line() -> None:
    first = (ROOT / "README.md").read_text().splitlines()[:20]
    assert any(line.startswith("make demo") for line in first)
    assert any("holdfast.Run(" in line for line in first)
