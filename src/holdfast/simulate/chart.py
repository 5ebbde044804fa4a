"""A self-contained SVG: where each policy's time goes, as stacked bars. No library, no script."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from holdfast.simulate.outcome import Outcome

# Distinguishable without colour vision problems (Okabe and Ito's palette), useful time palest.
COLOURS = {
    "useful": "#c9e3d6",
    "stall": "#d55e00",
    "slowdown": "#e69f00",
    "rework": "#0072b2",
    "restart": "#7f7f7f",
}
WIDTH, LEFT, RIGHT, TOP, BAR, GAP = 980, 220, 90, 78, 22, 12


def stacked_bars(title: str, outcomes: Sequence[Outcome]) -> str:
    """Bars of equal length, one per policy; the axis is the share of wall time."""
    height = TOP + len(outcomes) * (BAR + GAP) + 46
    inner = WIDTH - LEFT - RIGHT
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" font-family="Helvetica, Arial, sans-serif" font-size="13" fill="#222">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="26" font-size="16" font-weight="bold">{escape(title)}</text>',
    ]
    x = float(LEFT)
    for name, colour in COLOURS.items():
        out.append(f'<rect x="{x:.0f}" y="42" width="14" height="14" fill="{colour}"/>')
        out.append(f'<text x="{x + 20:.0f}" y="54">{name}</text>')
        x += 44 + 8 * len(name)
    bottom = TOP + len(outcomes) * (BAR + GAP)
    for tick in range(0, 11, 2):
        at = LEFT + inner * tick / 10
        out.append(f'<line x1="{at:.1f}" y1="{TOP - 6}" x2="{at:.1f}" y2="{bottom}" stroke="#ddd"/>')
        out.append(f'<text x="{at:.1f}" y="{bottom + 18}" text-anchor="middle">{tick * 10} %</text>')
    for i, one in enumerate(outcomes):
        y = TOP + i * (BAR + GAP)
        out.append(f'<text x="{LEFT - 10}" y="{y + 16}" text-anchor="end">{escape(one.name)}</text>')
        at = float(LEFT)
        for name, share in one.breakdown.items():
            width = inner * max(0.0, share)
            tip = f"{one.name}: {name} {100 * share:.2f} %"
            out.append(
                f'<rect x="{at:.2f}" y="{y}" width="{width:.2f}" height="{BAR}" fill="{COLOURS[name]}">'
                f"<title>{escape(tip)}</title></rect>"
            )
            at += width
        out.append(f'<text x="{LEFT + inner + 8}" y="{y + 16}">{100 * one.goodput:.1f} %</text>')
    out.append(
        f'<text x="{LEFT + inner / 2:.0f}" y="{bottom + 38}" text-anchor="middle">share of time</text>'
    )
    return "\n".join([*out, "</svg>", ""])
