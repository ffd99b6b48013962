"""Masks: conditions on index tensors, and the part of an iteration space that they leave.

A mask belongs to index variables, so it is kept as inequalities `affine >= 0` until an instruction
gives it a space to hold in.  There, inequalities of one axis shrink a box; what couples two axes
(a triangle) stays as inequalities over the box.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np

from nkisim.errors import KernelError, UnsupportedError
from nkisim.frontend.index import IndexForm, IndexTensor
from nkisim.ops.masks import MAX_CLAUSES, Terms

Shape = tuple[int, ...]
Box = tuple[tuple[int, int], ...]
"""(start, count) along each axis."""


class Predicate:
    """A condition in disjunctive form: any clause holds, whose terms are all at least 0.

    Attributes:
        clauses: Alternatives; each a conjunction of index tensors that must be >= 0.
    """

    __slots__ = ("clauses",)

    def __init__(self, clauses: tuple[tuple[IndexTensor, ...], ...]) -> None:
        if len(clauses) > MAX_CLAUSES:
            raise UnsupportedError(
                "NKS502",
                f"a mask of {len(clauses)} alternatives is not emulated; at most {MAX_CLAUSES} are",
            )
        self.clauses = clauses

    def __and__(self, other: object) -> Predicate | bool:
        if isinstance(other, Predicate):
            return Predicate(tuple(a + b for a, b in product(self.clauses, other.clauses)))
        return self if _truth(other) else False

    __rand__ = __and__

    def __or__(self, other: object) -> Predicate | bool:
        if isinstance(other, Predicate):
            return Predicate(self.clauses + other.clauses)
        return True if _truth(other) else self

    __ror__ = __or__

    def __invert__(self) -> Predicate:
        choices = product(*self.clauses)
        clauses: list[tuple[IndexTensor, ...]] = []
        for choice in choices:
            clauses.append(tuple(-term - 1 for term in choice))
            if len(clauses) > MAX_CLAUSES:
                break
        return Predicate(tuple(clauses))

    def __xor__(self, other: object) -> Predicate | bool:
        if isinstance(other, Predicate):
            return (self & ~other) | (~self & other)
        return ~self if _truth(other) else self

    __rxor__ = __xor__

    def __bool__(self) -> bool:
        raise KernelError(
            "NKS404",
            "a condition on index tensors has no single truth value",
            hint="join conditions of a mask with &, | and ~; branch on loop variables only",
        )

    def __repr__(self) -> str:
        return " | ".join(" & ".join(f"({term!r} >= 0)" for term in c) for c in self.clauses)

    @property
    def key(self) -> tuple[tuple[tuple[IndexForm, int], ...], ...]:
        """A hashable value, equal for equal conditions."""
        return tuple(tuple((t.form, t.constant) for t in clause) for clause in self.clauses)


def _truth(value: object) -> bool:
    if isinstance(value, (bool, int, np.bool_)):
        return bool(value)
    raise UnsupportedError(
        "NKS502", f"a mask combined with {type(value).__name__} {value!r:.40} is not emulated"
    )


@dataclass(frozen=True, slots=True)
class Region:
    """The part of an iteration space where a mask holds."""

    box: tuple[tuple[int, int], ...]
    """(start, count) along each axis."""
    clauses: tuple[Terms, ...] = ()
    """What the box does not say: any clause must hold, over indices from the box's origin."""

    def is_whole(self, shape: Shape) -> bool:
        """Whether nothing of `shape` is masked out."""
        return not self.clauses and all(
            start == 0 and count == n for (start, count), n in zip(self.box, shape, strict=True)
        )


def resolve(mask: Predicate, shape: Shape) -> Region | None:
    """Return where `mask` holds within an iteration space, or None if nowhere."""
    return _resolve(mask.key, shape)


@lru_cache(maxsize=4096)
def _resolve(key: tuple[tuple[tuple[IndexForm, int], ...], ...], shape: Shape) -> Region | None:
    parts: list[_Part] = []
    for clause in key:
        terms = [(constant, *_align(form, shape)) for form, constant in clause]
        part = _shrink(terms, shape)
        if part is not None:
            parts.append(part)
    parts = _merged(parts)
    if not parts:
        return None
    low = [min(part.low[d] for part in parts) for d in range(len(shape))]
    high = [max(part.high[d] for part in parts) for d in range(len(shape))]
    box = tuple((a, b - a + 1) for a, b in zip(low, high, strict=True))
    if len(parts) == 1 and not parts[0].terms:
        return Region(box)
    clauses = []
    for part in parts:
        bounds = [*part.terms]
        for d in range(len(shape)):
            unit = tuple(int(k == d) for k in range(len(shape)))
            if part.low[d] > low[d]:
                bounds.append((-part.low[d], *unit))
            if part.high[d] < high[d]:
                bounds.append((part.high[d], *(-u for u in unit)))
        moved = [
            (c + sum(k * a for k, a in zip(steps, low, strict=True)), *steps)
            for c, *steps in bounds
        ]
        clauses.append(tuple(sorted(set(moved))))
    return Region(box, tuple(sorted(clauses)))


def _align(form: IndexForm, shape: Shape) -> tuple[int, ...]:
    """Return the steps of `form` along the axes of an iteration space.

    The leading axes match first, then axes of extent 1 are dropped or added as needed: kernels
    write `i[:, None]` masks for tiles of any rank.
    """
    if len(form.shape) == len(shape):
        pairs = list(zip(form.shape, form.coefficients, shape, strict=True))
        if all(n in (1, extent) or step == 0 for n, step, extent in pairs):
            return form.coefficients
    used = [
        (n, step) for n, step in zip(form.shape, form.coefficients, strict=True) if step and n > 1
    ]
    leading = [
        axis
        for axis, (n, step) in enumerate(zip(form.shape, form.coefficients, strict=True))
        if step and n > 1
    ]
    steps = [0] * len(shape)
    is_first = bool(leading) and leading[0] == 0
    free = list(range(len(shape)))
    for position, (n, step) in enumerate(used):
        rest = len(used) - position - 1
        for axis in free:
            if shape[axis] == n and len([a for a in free if a > axis]) >= rest:
                if position == 0 and is_first and axis != 0 and len(shape) > 1:
                    continue
                steps[axis] = step
                free = [a for a in free if a > axis]
                break
        else:
            raise KernelError(
                "NKS105",
                f"a mask over index tensors of shape {list(form.shape)} does not fit an "
                f"instruction over {list(shape)}",
                hint="build the mask from the index tensors that subscript the operands",
            )
    return tuple(steps)


class _Part(NamedTuple):
    """One clause within a space: bounds of each axis, and the terms that they do not imply."""

    low: tuple[int, ...]
    high: tuple[int, ...]
    terms: tuple[tuple[int, ...], ...]


def _shrink(terms: Sequence[tuple[int, ...]], shape: Shape) -> _Part | None:
    low, high = [0] * len(shape), [n - 1 for n in shape]
    changed = True
    while changed:
        changed = False
        for constant, *steps in terms:
            reach = [max(step * low[d], step * high[d]) for d, step in enumerate(steps)]
            top = constant + sum(reach)
            if top < 0:
                return None
            for d, step in enumerate(steps):
                if not step:
                    continue
                rest = top - reach[d]  # step * i_d >= -rest
                if step > 0 and -(rest // step) > low[d]:
                    low[d], changed = -(rest // step), True
                elif step < 0 and rest // -step < high[d]:
                    high[d], changed = rest // -step, True
                if low[d] > high[d]:
                    return None
                reach[d] = max(step * low[d], step * high[d])
                top = rest + reach[d]
    kept = []
    for constant, *steps in terms:
        least = constant + sum(min(s * low[d], s * high[d]) for d, s in enumerate(steps))
        if least < 0:
            kept.append((constant, *steps))
    return _Part(tuple(low), tuple(high), tuple(sorted(set(kept))))


def _merged(parts: list[_Part]) -> list[_Part]:
    """Join boxes that together are one box."""
    parts = list(dict.fromkeys(parts))
    changed = True
    while changed:
        changed = False
        for i, a in enumerate(parts):
            for j, b in enumerate(parts):
                joined = _join(a, b) if i != j else None
                if joined is not None:
                    parts = [p for k, p in enumerate(parts) if k not in (i, j)]
                    parts.append(joined)
                    changed = True
                    break
            if changed:
                break
    return parts


def _join(a: _Part, b: _Part) -> _Part | None:
    if a.terms or (b.terms and not _contains(a, b)):
        return None
    if _contains(a, b):
        return a
    differ = [d for d in range(len(a.low)) if (a.low[d], a.high[d]) != (b.low[d], b.high[d])]
    if len(differ) != 1 or b.terms:
        return None
    d = differ[0]
    if a.low[d] > b.high[d] + 1 or b.low[d] > a.high[d] + 1:
        return None
    low, high = list(a.low), list(a.high)
    low[d], high[d] = min(a.low[d], b.low[d]), max(a.high[d], b.high[d])
    return _Part(tuple(low), tuple(high), ())


def _contains(a: _Part, b: _Part) -> bool:
    return all(p <= q for p, q in zip(a.low, b.low, strict=True)) and all(
        p >= q for p, q in zip(a.high, b.high, strict=True)
    )


def from_start(region: Region, axis: int) -> Region:
    """Return the same region with a box that starts at 0 along `axis`.

    What the box no longer says becomes a term.
    """
    start, count = region.box[axis]
    box = list(region.box)
    box[axis] = (0, start + count)
    unit = tuple(int(d == axis) for d in range(len(box)))
    clauses = []
    for clause in region.clauses or ((),):
        moved = [(c - steps[axis] * start, *steps) for c, *steps in clause]
        clauses.append(tuple(sorted({*moved, (-start, *unit)})))
    return Region(tuple(box), tuple(sorted(clauses)))


def pieces(region: Region, limit: int) -> list[Box] | None:
    """Return boxes that together are the region, or None if there are more than `limit`."""
    shape = tuple(count for _, count in region.box)
    found: list[Box] = []
    pending: list[list[tuple[int, ...]]] = [list(clause) for clause in region.clauses]
    while pending:
        terms = pending.pop()
        part = _shrink(terms, shape)
        if part is None:
            continue
        if not part.terms:
            found.append(
                tuple(
                    (start + low, high - low + 1)
                    for (start, _), low, high in zip(region.box, part.low, part.high, strict=True)
                )
            )
        else:
            coupled = {d for _, *steps in part.terms for d, step in enumerate(steps) if step}
            axis = min(coupled, key=lambda d: part.high[d] - part.low[d])
            unit = tuple(int(d == axis) for d in range(len(shape)))
            for value in range(part.low[axis], part.high[axis] + 1):
                fixed = [(-value, *unit), (value, *(-u for u in unit))]
                pending.append([*terms, *fixed])
        if len(found) + len(pending) > limit:
            return None
    return found


def single_comparison(mask: Predicate) -> IndexTensor:
    """Return the index tensor that must be >= 0 in a mask of one comparison."""
    if len(mask.clauses) != 1 or len(mask.clauses[0]) != 1:
        raise UnsupportedError(
            "NKS502",
            "affine_select takes one affine comparison, got several",
            hint="chain one affine_select for each condition",
        )
    return mask.clauses[0][0]
