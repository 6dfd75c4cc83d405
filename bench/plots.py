"""Draws the plots of docs/performance.md as SVG: a row per model, a dot per measurement, on a common scale of ratios."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#7f7f7f")  # colors that color-blind readers can distinguish
CEILING = "#d55e00"
ROW, LEFT, WIDTH, TOP = 22, 130, 560, 64


@dataclass
class Dot:
    series: str
    value: float
    text: str = ""  # text that appears while the mouse is over the dot
    hollow: bool = False


@dataclass
class Row:
    name: str
    dots: Sequence[Dot]
    mark: float | None = None


def dot_plot(rows: Sequence[Row], series: Sequence[str], title: str, caption: str, most: float = 3.0, mark: str = "") -> str:
    """Draws rows of dots. `mark` explains what `Row.mark` shows. Values above `most` are drawn at the right edge."""
    colours = dict(zip(series, PALETTE))
    place = lambda value: LEFT + min(value, most) / most * WIDTH
    height = TOP + ROW * len(rows) + 40
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 60}" height="{height}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="18" font-size="14">{html.escape(title)}</text>',
        *_legend(colours, mark),
        *_scale(place, most, height),
    ]
    for i, row in enumerate(rows):
        y = TOP + ROW * i + ROW / 2
        lines.append(f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{html.escape(row.name)}</text>')
        if row.mark is not None:
            lines.append(f'<rect x="{place(row.mark) - 1.5:.1f}" y="{y - 6}" width="3" height="12" fill="{CEILING}"/>')
        for dot in row.dots:
            colour = colours[dot.series]
            fill = "white" if dot.hollow else colour
            text = html.escape(dot.text or f"{dot.series}: {dot.value:.2f}")
            lines.append(f'<circle cx="{place(dot.value):.1f}" cy="{y}" r="5" fill="{fill}" stroke="{colour}" stroke-width="1.5"><title>{text}</title></circle>')
    lines += [f'<text x="{LEFT}" y="{height - 2}" font-size="10" fill="#555555">{html.escape(caption)}</text>', "</svg>"]
    return "\n".join(lines) + "\n"


def _legend(colours: dict[str, str], mark: str) -> list[str]:
    lines, x = [], LEFT
    for name, colour in colours.items():
        lines.append(f'<circle cx="{x + 5}" cy="36" r="5" fill="{colour}"/><text x="{x + 14}" y="40">{html.escape(name)}</text>')
        x += 34 + 7 * len(name)
    if mark:
        lines.append(f'<rect x="{x}" y="30" width="3" height="12" fill="{CEILING}"/><text x="{x + 8}" y="40">{html.escape(mark)}</text>')
    return lines


def _scale(place, most: float, height: int) -> list[str]:
    lines = []
    for tick in range(int(most * 2) + 1):
        value = tick / 2
        x, colour = f"{place(value):.1f}", "#000000" if value == 1 else "#dddddd"
        lines.append(f'<line x1="{x}" x2="{x}" y1="{TOP - 8}" y2="{height - 30}" stroke="{colour}"/>')
        lines.append(f'<text x="{x}" y="{height - 16}" text-anchor="middle">{value:g}{" and more" if value == most else ""}</text>')
    return lines
