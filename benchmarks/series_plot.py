"""Several lines over one axis as a small SVG, written by hand so that a plot needs no library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10

from plots import LIMIT, OURS, THEIRS

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM, SPACE = 860, 200, 80, 210, 40, 54, 44


@dataclass(frozen=True)
class Series:
    """One line. `broad` is drawn below the others, so that one which covers it stays visible with it."""

    label: str
    points: Sequence[tuple[float, float]]
    broad: bool = False
    dots: bool = True

    @property
    def colour(self) -> str:
        return OURS if self.label.startswith("holdfast") else THEIRS


@dataclass(frozen=True)
class Panel:
    label: str
    series: Sequence[Series]


def lines(title: str, axis: str, panels: Sequence[Panel], ticks: Sequence[float]) -> str:
    """Panels below one another over one axis that begins at 0."""
    height = TOP + len(panels) * (HEIGHT + SPACE) + BOTTOM
    end = max(ticks)
    bottom = TOP + len(panels) * (HEIGHT + SPACE)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="16" y="26" font-size="16" font-weight="bold">{escape(title)}</text>',
    ]
    for row, panel in enumerate(panels):
        out += _panel(panel, TOP + row * (HEIGHT + SPACE) + SPACE, end)
    for tick in ticks:
        out.append(
            f'<text x="{_x(tick, end):.1f}" y="{bottom + 20}" text-anchor="middle" fill="#868e96">'
            f"{tick:g}</text>"
        )
    out.append(
        f'<text x="{_x(end / 2, end):.1f}" y="{bottom + 42}" text-anchor="middle" fill="#868e96">'
        f"{escape(axis)}</text>"
    )
    return "\n".join([*out, "</svg>", ""])


def _x(value: float, end: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * value / end


def _panel(panel: Panel, top: float, end: float) -> list[str]:
    values = [value for series in panel.series for _, value in series.points]
    low, high = min(0.0, *values), max(values) * 1.08 or 1.0

    def y(value: float) -> float:
        return top + HEIGHT * (high - value) / (high - low)

    out = [f'<text x="{LEFT}" y="{top - 8}" font-weight="bold">{escape(panel.label)}</text>']
    for value in _round_values(high):
        out.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}" '
            'stroke="#e9ecef"/>'
            f'<text x="{LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end" fill="#868e96">{value:.3g}</text>'
        )
    for series in sorted(panel.series, key=lambda one: not one.broad):
        path = " ".join(f"{_x(at, end):.1f},{y(value):.1f}" for at, value in series.points)
        width = 8 if series.broad else 2
        out.append(f'<polyline points="{path}" fill="none" stroke="{series.colour}" stroke-width="{width}"/>')
        if series.dots:
            out += [
                f'<circle cx="{_x(at, end):.1f}" cy="{y(value):.1f}" r="4" fill="{series.colour}"/>'
                for at, value in series.points
            ]
    return out + _names(panel.series, y)


def _round_values(high: float) -> list[float]:
    """Three to seven of them from 0 on, that a reader can divide by in their head."""
    power = 10.0 ** floor(log10(high))
    step = next(s for s in (0.2 * power, 0.5 * power, power, 2 * power) if high / s < 6.5)
    return [step * number for number in range(int(high / step) + 1)]


def _names(series: Sequence[Series], y: object) -> list[str]:
    """At the end of each line, moved apart where they would cover each other."""
    assert callable(y)
    placed: list[float] = []
    out = []
    for one in sorted(series, key=lambda one: y(one.points[-1][1])):
        at = y(one.points[-1][1]) + 4
        at = max(at, placed[-1] + 16) if placed else at
        placed.append(at)
        ink = LIMIT if one.colour == THEIRS else one.colour  # grey that can be read
        out.append(
            f'<text x="{WIDTH - RIGHT + 12}" y="{at:.1f}" fill="{ink}" font-weight="bold">'
            f"{escape(one.label)}</text>"
        )
    return out
