"""Draws docs/intervals.svg: how long holdfast waits between two saves, from the first second on.

Nothing is measured: it asks the engine's own belief and formula, so the picture cannot be wrong about them.
"""

from __future__ import annotations

import math
import random

from holdfast.policy.belief import belief_from
from holdfast.policy.intervals import exact
from options import REPOSITORY

COST = 0.015
DAY = 86400.0
OUT = REPOSITORY / "docs" / "intervals.svg"
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 420, 90, 190, 56, 46
FIRST, LAST = 1.0, 3 * DAY
LEAST, MOST = 0.5, 600.0
JOBS = (("fails once a minute", 60.0, "#d55e00"), ("fails once in 4 hours", 4 * 3600.0, "#0072b2"),
        ("never fails", math.inf, "#009e73"))  # fmt: skip
TIMES = ((1, "1 s"), (10, "10 s"), (60, "1 min"), (600, "10 min"), (3600, "1 h"), (6 * 3600, "6 h"),
         (DAY, "1 d"), (3 * DAY, "3 d"))  # fmt: skip
GAPS = ((0.5, "0.5 s"), (1, "1 s"), (5, "5 s"), (20, "20 s"), (60, "1 min"), (300, "5 min"), (600, "10 min"))


def intervals(mtbf: float) -> list[tuple[float, float]]:
    """(seconds since the start, seconds between saves), with failures by chance but always the same ones."""
    chance, belief = random.Random(5), belief_from()
    points: list[tuple[float, float]] = []
    began, now = 0.0, FIRST
    fails = chance.expovariate(1 / mtbf) if math.isfinite(mtbf) else math.inf
    while now < LAST:
        while now >= began + fails:
            belief = belief.after_spell(fails, failed=True)
            began += fails
            fails = chance.expovariate(1 / mtbf)
        points.append((now, exact(COST, 1 / belief.mean(now - began))))
        now *= 1.03
    return points


def x(seconds: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * math.log(seconds / FIRST) / math.log(LAST / FIRST)


def y(gap: float) -> float:
    gap = min(max(gap, LEAST), MOST)
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - math.log(gap / LEAST) / math.log(MOST / LEAST))


def main() -> None:
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" font-family="Helvetica, Arial, sans-serif" font-size="13" fill="#222">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        '<text x="16" y="24" font-size="16" font-weight="bold">Time between two saves that cost 15 ms</text>',
        '<text x="16" y="43" fill="#666">solid: not knowing how often the job fails; '
        "dashed: knowing it; over time since the start</text>",
    ]
    for at, name in TIMES:
        out.append(
            f'<line x1="{x(at):.1f}" x2="{x(at):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#eee"/>'
        )
        out.append(f'<text x="{x(at):.1f}" y="{HEIGHT - 22}" text-anchor="middle" fill="#666">{name}</text>')
    for gap, name in GAPS:
        out.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(gap):.1f}" y2="{y(gap):.1f}" stroke="#eee"/>'
        )
        out.append(f'<text x="{LEFT - 8}" y="{y(gap) + 4:.1f}" text-anchor="end" fill="#666">{name}</text>')
    for name, mtbf, colour in JOBS:
        points = intervals(mtbf)
        path = " ".join(f"{x(at):.1f},{y(gap):.1f}" for at, gap in points)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        level = exact(COST, mtbf) if math.isfinite(mtbf) else points[-1][1]
        if math.isfinite(mtbf):
            out.append(
                f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(level):.1f}" y2="{y(level):.1f}" '
                f'stroke="{colour}" stroke-dasharray="5 5"/>'
            )
        out.append(f'<text x="{WIDTH - RIGHT + 10}" y="{y(level) + 4:.1f}" fill="{colour}">{name}</text>')
    OUT.write_text("\n".join([*out, "</svg>", ""]))


if __name__ == "__main__":
    main()
