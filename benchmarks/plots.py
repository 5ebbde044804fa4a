"""Horizontal bars as a small SVG, written by hand so that a plot needs no library.

It draws what it is given; choosing what to show is the caller's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

WIDTH, LEFT, RIGHT, BAR, GAP, TOP, BOTTOM = 860, 250, 110, 22, 10, 52, 34
OURS, THEIRS, LIMIT = "#0b7285", "#adb5bd", "#495057"


@dataclass(frozen=True)
class Bar:
    label: str
    value: float
    text: str

    @property
    def colour(self) -> str:
        if self.label.startswith("holdfast"):
            return OURS
        return LIMIT if self.label.startswith("raw") else THEIRS


def bars(title: str, axis: str, data: Sequence[Bar], logarithmic: bool = False) -> str:
    """An SVG document. On a logarithmic axis every value must be positive."""
    height = TOP + len(data) * (BAR + GAP) + BOTTOM
    span = WIDTH - LEFT - RIGHT
    if logarithmic:
        low, high = floor(log10(min(b.value for b in data))), ceil(log10(max(b.value for b in data)))
        high = max(high, low + 1)
        ticks = [10.0**power for power in range(low, high + 1)]

        def place(value: float) -> float:
            return span * (log10(value) - low) / (high - low)
    else:
        top = max(0.0, *(b.value for b in data)) or 1.0
        ticks = [top * part / 4 for part in range(5)]

        def place(value: float) -> float:
            return span * max(value, 0.0) / top

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="16" y="26" font-size="16" font-weight="bold">{escape(title)}</text>',
    ]
    for tick in ticks:
        x = LEFT + place(tick)
        out.append(
            f'<line x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{height - BOTTOM}" stroke="#e9ecef"/>'
        )
        label = f"{tick:,.4g}"
        out.append(f'<text x="{x:.1f}" y="{height - 16}" text-anchor="middle" fill="#868e96">{label}</text>')
    out.append(
        f'<text x="{LEFT - 40}" y="{height - 16}" text-anchor="end" fill="#868e96">{escape(axis)}</text>'
    )
    for row, bar in enumerate(data):
        y = TOP + row * (BAR + GAP)
        length = max(place(bar.value), 1.0)
        middle = y + BAR * 0.7
        out.append(f'<text x="{LEFT - 10}" y="{middle:.1f}" text-anchor="end">{escape(bar.label)}</text>')
        out.append(f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR}" fill="{bar.colour}"/>')
        out.append(f'<text x="{LEFT + length + 6:.1f}" y="{middle:.1f}">{escape(bar.text)}</text>')
    return "\n".join([*out, "</svg>", ""])
