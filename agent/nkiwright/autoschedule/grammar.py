"""The legal plans of a graph on a machine, as a space to enumerate, sample and walk in.

A space is a list of knobs.  Every combination of knob values is a plan; a plan is legal if the
kernel that it stands for fits SBUF and PSUM at all known sizes, which is estimated without a trace
by adding up the tiles that the renderer allocates.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from nkisim.machine.spec import Machine
from nkiwright.autoschedule.plan import QUEUES, Plan, Queue, Value

_ATTEMPTS = 2000
_SBUF_SHARE = 0.92
"""Part of SBUF that plans may fill: small tiles and alignment are not counted."""


@dataclass(frozen=True, slots=True)
class Knob:
    """One decision: a plan field, or `engines.<choice point>`."""

    name: str
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """A kernel's source and what it needs on chip."""

    source: str
    sbuf_bytes: tuple[int, ...]
    """Bytes per partition, at each known set of sizes."""
    psum_banks: int


def queues_of(machine: Machine, *, is_many: bool = False) -> tuple[Queue, ...]:
    """Return who may issue copies; hardware descriptors came with NeuronCore-v3.

    Args:
        machine: The machine.
        is_many: Whether several tensors are copied, so that they may be spread over two queues.
    """
    if machine.generation < 3:
        return ("default", "gpsimd")
    return QUEUES if is_many else QUEUES[:-1]


class Family(Protocol):
    """A kind of kernel that fits the graph."""

    @property
    def knobs(self) -> tuple[Knob, ...]:
        """The decisions, each with its values."""
        ...

    def build(self, values: Mapping[str, Value]) -> Plan:
        """Return the plan with these knob values."""
        ...

    def values(self, plan: Plan) -> dict[str, Value]:
        """Return the knob values of a plan; inverse of `build` for canonical plans."""
        ...

    def render(self, plan: Plan) -> Rendered:
        """Return the kernel that a plan stands for."""
        ...


class Space:
    """The legal plans of one family on one machine."""

    def __init__(self, family: Family, machine: Machine) -> None:
        self.family = family
        self.machine = machine
        self._known: dict[Plan, bool] = {}

    @property
    def knobs(self) -> tuple[Knob, ...]:
        """The decisions, each with its values."""
        return self.family.knobs

    @property
    def size(self) -> int:
        """Number of combinations of knob values, legal or not."""
        return math.prod(len(knob.values) for knob in self.knobs)

    def render(self, plan: Plan) -> Rendered:
        """Return the kernel that a plan stands for."""
        return self.family.render(plan)

    def is_legal(self, plan: Plan) -> bool:
        """Say whether the plan's kernel fits the machine at all known sizes."""
        legal = self._known.get(plan)
        if legal is None:
            rendered = self.family.render(plan)
            limits = self.machine.limits
            legal = self._known[plan] = (
                max(rendered.sbuf_bytes) <= _SBUF_SHARE * limits.sbuf_usable_bytes
                and rendered.psum_banks <= limits.psum_banks
            )
        return legal

    def sample(self, rng: random.Random) -> Plan:
        """Draw a legal plan, each knob uniformly.

        Raises:
            ValueError: No legal plan was found.
        """
        for _ in range(_ATTEMPTS):
            plan = self.family.build({k.name: rng.choice(k.values) for k in self.knobs})
            if self.is_legal(plan):
                return plan
        raise ValueError(f"none of {_ATTEMPTS} sampled plans fits {self.machine.name}")

    def neighbours(self, plan: Plan) -> Iterator[Plan]:
        """Yield the legal plans that differ from `plan` in one knob."""
        now = self.family.values(plan)
        seen = {plan}
        for knob in self.knobs:
            for value in knob.values:
                if value != now.get(knob.name):
                    other = self.family.build({**now, knob.name: value})
                    if other not in seen and self.is_legal(other):
                        seen.add(other)
                        yield other

    def mutate(self, plan: Plan, rng: random.Random, *, only: frozenset[str] | None = None) -> Plan:
        """Return a legal plan that differs in one knob, sometimes in two or three.

        Args:
            plan: Where to start.
            rng: Source of randomness.
            only: Knobs to change, as name prefixes, or None for any.
        """
        knobs = [
            k
            for k in self.knobs
            if len(k.values) > 1
            and (only is None or any(k.name.startswith(prefix) for prefix in only))
        ]
        if not knobs:
            return self.sample(rng)
        for _ in range(_ATTEMPTS):
            values = self.family.values(plan)
            for knob in rng.sample(knobs, min(len(knobs), rng.choice((1, 1, 1, 2, 3)))):
                values[knob.name] = rng.choice([v for v in knob.values if v != values[knob.name]])
            other = self.family.build(values)
            if other != plan and self.is_legal(other):
                return other
        return self.sample(rng)

    def __iter__(self) -> Iterator[Plan]:
        """Yield every legal plan once, in a fixed order."""
        seen: set[Plan] = set()
        names = [k.name for k in self.knobs]
        for combination in itertools.product(*(k.values for k in self.knobs)):
            plan = self.family.build(dict(zip(names, combination, strict=True)))
            if plan not in seen and self.is_legal(plan):
                seen.add(plan)
                yield plan
