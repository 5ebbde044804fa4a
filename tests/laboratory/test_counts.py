"""What the laboratory counted stands in docs/guarantees.md, added up, and nothing else there changes."""

import json
from pathlib import Path

from write_counts import BEGIN, END, PAGE, write


def test_counts_are_added_up_between_their_marks(tmp_path: Path) -> None:
    page, counts = tmp_path / "page.md", tmp_path / "counts"
    page.write_text(f"before\n{BEGIN}\nstale\n{END}\nafter\n")
    notes = [{"tried": "kills", "count": n, "looked_for": "lost", "found": 0} for n in (1000, 200)]
    peers = {"peers": {"torch.save": {"one bit flipped": 9}, "holdfast": {"one bit flipped": 0}}, "trials": 9}
    counts.write_text("".join(json.dumps(note) + "\n" for note in [*notes, peers]))
    write(counts, page)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "stale" not in text
    assert "| 1,200 kills | 0 | lost |" in text
    assert "| torch.save | 9 |" in text


def test_the_page_has_the_marks() -> None:
    text = PAGE.read_text()
    assert text.index(BEGIN) < text.index(END)
