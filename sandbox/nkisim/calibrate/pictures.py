"""The report's pictures, as SVG text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from nkisim.calibrate.scores import GapBin

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 20, 40, 56
INK, MUTED, GRID = "#1f2328", "#6e7781", "#d8dee4"
COLOURS = ("#0969da", "#bc4c00", "#1a7f37", "#8250df", "#cf222e", "#9a6700", "#57606a", "#0550ae")


def order_picture(bins: Sequence[GapBin], roofline: Sequence[GapBin]) -> str:
    """Draw how often the predicted order is right, by the gap between the two predictions."""
    shown = [i for i, b in enumerate(bins) if b.pairs or roofline[i].pairs]
    drawing = _Drawing(
        "How often the predicted order is right",
        "predicted gap between two versions of a kernel",
        "share of pairs in the right order (95 % interval)",
    )
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        drawing.horizontal(share, f"{share:.0%}", dashed=share == 0.5)
    width = 1.0 / max(1, len(shown))
    for position, i in enumerate(shown):
        middle = (position + 0.5) * width
        drawing.below(middle, _gap_name(bins[i]))
        for found, shift, colour in ((bins[i], -0.1, COLOURS[0]), (roofline[i], 0.12, MUTED)):
            if not found.pairs:
                continue
            x = middle + shift * width
            low, high = found.interval()
            drawing.line(x, low, x, high, colour)
            drawing.dot(x, found.share, colour, 5)
            drawing.text(x, found.share, f"{found.right}/{found.pairs}", colour)
    drawing.legend([("nkisim", COLOURS[0]), ("static roofline", MUTED)])
    return drawing.svg()


def scatter_picture(points: Sequence[tuple[float, float, str]]) -> str:
    """Draw predicted over measured time of kernels that were left out of the fit.

    Args:
        points: Measured microseconds, predicted over measured, kernel family.
    """
    drawing = _Drawing(
        "Predicted over measured time, kernel family left out of the fit",
        "measured latency",
        "predicted / measured",
    )
    if not points:
        return drawing.svg()
    low = math.floor(math.log10(min(p[0] for p in points)))
    high = max(low + 1, math.ceil(math.log10(max(p[0] for p in points))))
    reach = max(math.log(2), *(abs(math.log(p[1])) for p in points)) * 1.1

    def across(us: float) -> float:
        return (math.log10(us) - low) / (high - low)

    def up(ratio: float) -> float:
        return 0.5 + math.log(ratio) / (2 * reach)

    for ratio in (0.1, 0.25, 0.5, 0.8, 1.0, 1.25, 2.0, 4.0, 10.0):
        if abs(math.log(ratio)) < reach:
            drawing.horizontal(up(ratio), f"{ratio:g}", dashed=ratio != 1.0)
    for power in range(low, high + 1):
        drawing.below(across(10.0**power), _microseconds(10.0**power))
    families = sorted({p[2] for p in points})
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(families)}
    for us, ratio, family in points:
        drawing.dot(across(us), up(ratio), colours[family], 4)
    drawing.legend([(name, colours[name]) for name in families])
    return drawing.svg()


def _gap_name(b: GapBin) -> str:
    if math.isinf(b.high):
        return f"> {b.low:.0%}"
    return f"{b.low:.0%} to {b.high:.0%}" if b.low else f"< {b.high:.0%}"


def _microseconds(us: float) -> str:
    return f"{us / 1000:g} ms" if us >= 1000 else f"{us:g} us"


class _Drawing:
    """A plot whose data area is the unit square."""

    def __init__(self, title: str, below: str, beside: str) -> None:
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            f'font-family="sans-serif" font-size="11" fill="{INK}">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
            f'<text x="{LEFT}" y="18" font-size="13">{escape(title)}</text>',
            f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">'
            f"{escape(below)}</text>",
            f'<text transform="translate(14 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" '
            f'text-anchor="middle">{escape(beside)}</text>',
        ]

    def _x(self, x: float) -> float:
        return round(LEFT + x * (WIDTH - LEFT - RIGHT), 1)

    def _y(self, y: float) -> float:
        return round(HEIGHT - BOTTOM - y * (HEIGHT - TOP - BOTTOM), 1)

    def horizontal(self, y: float, label: str, *, dashed: bool) -> None:
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        at = self._y(y)
        self.parts.append(
            f'<line x1="{LEFT}" y1="{at}" x2="{WIDTH - RIGHT}" y2="{at}" stroke="{GRID}"{dash}/>'
            f'<text x="{LEFT - 6}" y="{at + 4}" text-anchor="end">{escape(label)}</text>'
        )

    def below(self, x: float, label: str) -> None:
        self.parts.append(
            f'<text x="{self._x(x)}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">'
            f"{escape(label)}</text>"
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, colour: str) -> None:
        self.parts.append(
            f'<line x1="{self._x(x1)}" y1="{self._y(y1)}" x2="{self._x(x2)}" y2="{self._y(y2)}" '
            f'stroke="{colour}" stroke-width="2"/>'
        )

    def dot(self, x: float, y: float, colour: str, radius: int) -> None:
        self.parts.append(
            f'<circle cx="{self._x(x)}" cy="{self._y(y)}" r="{radius}" fill="{colour}" '
            'fill-opacity="0.75"/>'
        )

    def text(self, x: float, y: float, label: str, colour: str) -> None:
        self.parts.append(
            f'<text x="{self._x(x) + 8}" y="{self._y(y) + 4}" font-size="10" fill="{colour}">'
            f"{escape(label)}</text>"
        )

    def legend(self, entries: Sequence[tuple[str, str]]) -> None:
        x = float(LEFT)
        for name, colour in entries:
            self.parts.append(
                f'<circle cx="{x + 4}" cy="30" r="4" fill="{colour}"/>'
                f'<text x="{x + 12}" y="34" font-size="10">{escape(name)}</text>'
            )
            x += 20 + 5.6 * len(name)

    def svg(self) -> str:
        return "\n".join([*self.parts, "</svg>"]) + "\n"
