"""Everything that can go wrong, in three kinds that are never mixed.

* `KernelError`: the kernel breaks a rule of the language or the machine.  Its text is read by a
  person and by a language model and must be enough to mend the kernel.
* `UnsupportedError`: nkisim does not emulate this; it says nothing about the kernel.
* `EmulatorBug`: nkisim itself is wrong.

Codes are stable: 1xx shape and layout, 2xx memory, 3xx dtype, 4xx synchronisation and control flow,
5xx unsupported, 6xx Python of the kernel, 9xx our bug.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Self

Kind = Literal["error", "unsupported", "warning", "note"]
MAX_TEXT_LINES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A line of the kernel's source."""

    file: str
    line: int
    text: str = ""
    """The source line itself, stripped; empty if the source is not at hand."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """What is wrong, where, what came, what is allowed, and how to mend it."""

    code: str
    message: str
    """The rule with the offending values, starting with the instruction's name."""
    kind: Kind = "error"
    place: Place | None = None
    callers: tuple[Place, ...] = ()
    """Call chain outwards from `place`, when the line sits in a helper function."""
    got: str | None = None
    allowed: str | None = None
    hint: str | None = None

    def __str__(self) -> str:
        lines = [f"{self.code} {self.message}"]
        if self.place is not None:
            lines.append(f"  {self.place!s:<14} {self.place.text}".rstrip())
        lines += [f"  {'from':<8} {caller}   {caller.text}".rstrip() for caller in self.callers[:2]]
        for label, text in (("got", self.got), ("allowed", self.allowed), ("hint", self.hint)):
            if text:
                lines.append(f"  {label:<8} {text}")
        return "\n".join(lines[:MAX_TEXT_LINES])

    def to_dict(self) -> dict[str, object]:
        """Return plain JSON data, read back by `from_dict`."""
        data: dict[str, object] = {"code": self.code, "message": self.message, "kind": self.kind}
        if self.place is not None:
            data["place"] = [self.place.file, self.place.line, self.place.text]
        if self.callers:
            data["callers"] = [[p.file, p.line, p.text] for p in self.callers]
        for name in ("got", "allowed", "hint"):
            if getattr(self, name) is not None:
                data[name] = getattr(self, name)
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, object], *, max_chars: int = 4000) -> Self:
        """Read what `to_dict` wrote.  Trusts nothing: wrong types raise `ProgramError`."""

        def text(name: str, default: str | None = None) -> str | None:
            value = data.get(name, default)
            if value is not None and not isinstance(value, str):
                raise ProgramError(f"diagnostic field {name!r} is {type(value).__name__}, not str")
            return value[:max_chars] if value is not None else None

        def place(value: object) -> Place:
            match value:
                case [str() as file, int() as line, str() as source]:
                    return Place(file=file[:500], line=line, text=source[:500])
            raise ProgramError(f"diagnostic place is malformed: {value!r:.200}")

        kind = text("kind", "error")
        if kind not in ("error", "unsupported", "warning", "note"):
            raise ProgramError(f"diagnostic kind {kind!r:.50} is unknown")
        callers = data.get("callers", [])
        if not isinstance(callers, list):
            raise ProgramError("diagnostic callers is not a list")
        return cls(
            code=text("code", "NKS900") or "NKS900",
            message=text("message", "") or "",
            kind=kind,  # type: ignore[arg-type]  # narrowed by the membership test above
            place=place(data["place"]) if data.get("place") is not None else None,
            callers=tuple(place(caller) for caller in callers[:8]),
            got=text("got"),
            allowed=text("allowed"),
            hint=text("hint"),
        )


class NkisimError(Exception):
    """Base of all errors that nkisim raises on purpose."""


class DiagnosticError(NkisimError):
    """An error that carries a `Diagnostic`."""

    kind: Kind = "error"

    def __init__(
        self,
        code: str,
        message: str,
        *,
        got: str | None = None,
        allowed: str | None = None,
        hint: str | None = None,
        place: Place | None = None,
        callers: tuple[Place, ...] = (),
    ) -> None:
        self.diagnostic = Diagnostic(
            code=code,
            message=message,
            kind=self.kind,
            got=got,
            allowed=allowed,
            hint=hint,
            place=place,
            callers=callers,
        )
        super().__init__(message)

    @property
    def code(self) -> str:
        """The stable code, such as `NKS104`."""
        return self.diagnostic.code

    def at(self, place: Place, callers: tuple[Place, ...] = ()) -> Self:
        """Fill in the place unless it is known already, and return self."""
        if self.diagnostic.place is None:
            self.diagnostic = replace(self.diagnostic, place=place, callers=callers)
        return self

    def __str__(self) -> str:
        return str(self.diagnostic)


class KernelError(DiagnosticError):
    """The kernel breaks a rule; the text is meant for whoever wrote the kernel."""


class UnsupportedError(DiagnosticError):
    """nkisim does not emulate this; the kernel may well be right."""

    kind: Kind = "unsupported"


class OutOfFuel(NkisimError):
    """A Program used up its allowance of instructions, bytes, loop trips or emulated time."""

    def __init__(self, resource: str, limit: int, used: int | None = None, place: str = "") -> None:
        self.resource, self.limit, self.used = resource, limit, used
        where = f" at {place}" if place else ""
        amount = "" if used is None else f" ({used:,} needed)"
        super().__init__(f"out of fuel{where}: more than {limit:,} {resource}{amount}")


class ProgramError(NkisimError):
    """An encoded or printed Program is malformed; whoever made it cannot be trusted."""


class MachineError(NkisimError):
    """A machine description is unknown, incomplete or contradictory."""


class EmulatorBug(NkisimError):
    """An invariant of nkisim does not hold; please report it with the kernel."""


@dataclass(slots=True)
class Warnings:
    """Diagnostics that do not stop a run, each kept once."""

    items: list[Diagnostic] = field(default_factory=list)
    limit: int = 50

    def add(self, diagnostic: Diagnostic) -> None:
        """Keep `diagnostic` unless an equal one is there or the list is full."""
        if diagnostic not in self.items and len(self.items) < self.limit:
            self.items.append(diagnostic)
