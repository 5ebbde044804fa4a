"""Points and lines over time as a small SVG, written by hand so that a plot needs no library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM, SPACE = 860, 190, 80, 24, 40, 40, 26


@dataclass(frozen=True)
class Panel:
    """One quantity over time. `limit` is drawn as a dashed line."""

    label: str
    points: Sequence[tuple[float, float]]
    limit: float | None = None
    colour: str = "#0b7285"


def over_time(title: str, panels: Sequence[Panel], shaded: tuple[float, float, str] | None = None) -> str:
    """Panels below one another on one time axis, in seconds; `shaded` marks a stretch and names it."""
    height = TOP + len(panels) * (HEIGHT + SPACE) + BOTTOM
    end = max(t for panel in panels for t, _ in panel.points) or 1.0
    span = WIDTH - LEFT - RIGHT

    def x(t: float) -> float:
        return LEFT + span * t / end

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="16" y="26" font-size="16" font-weight="bold">{escape(title)}</text>',
    ]
    bottom = TOP + len(panels) * (HEIGHT + SPACE)
    if shaded is not None:
        begin, stop, name = shaded
        out.append(
            f'<rect x="{x(begin):.1f}" y="{TOP}" width="{x(stop) - x(begin):.1f}" height="{bottom - TOP}" '
            'fill="#fff3bf"/>'
            f'<text x="{x(begin) + 6:.1f}" y="{TOP + 14}" fill="#868e96">{escape(name)}</text>'
        )
    for row, panel in enumerate(panels):
        out += _panel(panel, TOP + row * (HEIGHT + SPACE) + SPACE, x)
    for part in range(5):
        t = end * part / 4
        out.append(
            f'<text x="{x(t):.1f}" y="{bottom + 20}" text-anchor="middle" fill="#868e96">{t:.0f} s</text>'
        )
    return "\n".join([*out, "</svg>", ""])


def _panel(panel: Panel, top: float, place: Callable[[float], float]) -> list[str]:
    most = max([value for _, value in panel.points] + ([panel.limit] if panel.limit else [])) * 1.1 or 1.0

    def y(value: float) -> float:
        return top + HEIGHT - HEIGHT * max(0.0, value) / most

    out = [f'<text x="{LEFT}" y="{top - 6}" font-weight="bold">{escape(panel.label)}</text>']
    for part in range(4):
        value = most * part / 4
        out.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}" '
            'stroke="#e9ecef"/>'
        )
        out.append(
            f'<text x="{LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end" fill="#868e96">{value:.3g}</text>'
        )
    if panel.limit is not None:
        out.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(panel.limit):.1f}" y2="{y(panel.limit):.1f}" '
            'stroke="#e03131" stroke-dasharray="6 4"/>'
        )
    path = " ".join(f"{place(t):.1f},{y(value):.1f}" for t, value in panel.points)
    out.append(f'<polyline points="{path}" fill="none" stroke="{panel.colour}" stroke-width="1.5"/>')
    out += [
        f'<circle cx="{place(t):.1f}" cy="{y(value):.1f}" r="3" fill="{panel.colour}"/>'
        for t, value in panel.points
    ]
    return out
