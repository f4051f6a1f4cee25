"""Draw the figures of the pages as SVG: text, of which the same results make the same bytes on every machine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

COLOURS = {"inference": "#2f6fbf", "training step": "#d9822b"}
WIDTH, LEFT, RIGHT, TOP, BOTTOM = 800, 330, 50, 44, 34
BAR, GAP = 13, 12  # height of a bar, and between the bars of two rows


def bars(rows: Sequence[tuple[str, Mapping[str, float]]], title: str) -> str:
    """Return a chart of ratios: a bar for each mode of each row, and a line at 1.

    Parameters
    ----------
    rows : sequence of (str, mapping of str to float)
        A label, and the ratios by a mode of `COLOURS`.
    title : str
        What the chart shows, for readers who hear it.
    """
    most = math.ceil(max(ratio for _, ratios in rows for ratio in ratios.values()))
    height = TOP + sum(BAR * len(ratios) + GAP for _, ratios in rows) + BOTTOM
    scale = (WIDTH - LEFT - RIGHT) / most
    foot = height - BOTTOM
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
        ' font-family="sans-serif" font-size="12" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{height}" rx="6" fill="#ffffff"/>',
    ]
    for i, (mode, colour) in enumerate(COLOURS.items()):
        at = LEFT + 130 * i
        lines.append(f'<rect x="{at}" y="14" width="{BAR}" height="{BAR}" fill="{colour}"/>')
        lines.append(_text(at + BAR + 6, 25, mode))
    for tick in range(most + 1):
        at = LEFT + tick * scale
        line = 'stroke="#333333" stroke-width="1.5"' if tick == 1 else 'stroke="#dddddd"'
        lines.append(f'<line x1="{at:.1f}" y1="{TOP - 6}" x2="{at:.1f}" y2="{foot}" {line}/>')
        words = {0: "0", 1: "1: as fast"}.get(tick, f"{tick} times as fast" if tick == most else str(tick))
        lines.append(_text(at, foot + 18, words, "end" if tick == most else "middle"))
    y = TOP
    for label, ratios in rows:
        middle = y + BAR * len(ratios) / 2
        lines.append(_text(LEFT - 10, middle + 4, label, "end"))
        for mode, ratio in ratios.items():
            lines.append(
                f'<rect x="{LEFT}" y="{y}" width="{ratio * scale:.1f}" height="{BAR - 1}" fill="{COLOURS[mode]}"/>'
            )
            lines.append(_text(LEFT + ratio * scale + 5, y + BAR - 3, f"{ratio:.2f}"))
            y += BAR
        y += GAP
    return "\n".join([*lines, "</svg>", ""])


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="#222222">{escape(words)}</text>'
