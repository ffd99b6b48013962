"""What a writer is told about a kernel that was refused.

At most the emulator's eight lines, the verdict's class, and the nearest legal signature.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from nkisim.ops.registry import OpSpec
from nkisim.ops.table import OPS
from nkiwright.candidate import Candidate
from nkiwright.evaluate import Evaluation, Verdict

CLASSES = {
    Verdict.WRONG: "wrong values",
    Verdict.ILLEGAL: "a rule is broken",
    Verdict.UNSUPPORTED: "the emulator does not support this; use another instruction",
    Verdict.TOO_SLOW: "far too slow",
    Verdict.CRASHED: "the kernel's Python crashed while it was traced",
    Verdict.BELOW_FLOOR: "impossibly fast",
    Verdict.FAILED: "the judge failed; this says nothing about the kernel",
}


@dataclass(frozen=True, slots=True)
class Feedback:
    """What went wrong with one attempt."""

    error_class: str
    text: str
    """The diagnostic or the comparison, at most eight lines."""
    signatures: tuple[str, ...] = ()
    """Legal signatures and rules of the instructions involved."""

    @property
    def fingerprint(self) -> str:
        """Equal for the same mistake on other lines and numbers."""
        return re.sub(r"\d+", "#", f"{self.error_class} {self.text.splitlines()[0][:160]}")


def feedback_on(candidate: Candidate) -> Feedback:
    """Describe why a candidate was refused."""
    if candidate.evaluation is None:
        return Feedback("no kernel in the reply", candidate.draft.problem or "the reply was empty")
    evaluation = candidate.evaluation
    text = str(evaluation.diagnostic) if evaluation.diagnostic is not None else evaluation.message
    where = evaluation.message.partition(": ")[0]
    if evaluation.diagnostic is not None and where.startswith("at "):
        text = f"{text}\n  shape    {where.removeprefix('at ')}"
    return Feedback(CLASSES.get(evaluation.verdict, "refused"), text, _signatures(evaluation))


def _signatures(evaluation: Evaluation) -> tuple[str, ...]:
    diagnostic = evaluation.diagnostic
    if diagnostic is None:
        return ()
    place = diagnostic.place.text if diagnostic.place is not None else ""
    names = re.findall(r"[a-z][a-z0-9_]+", f"{diagnostic.message} {place}")
    found: list[str] = []
    for name in names:
        if name in OPS and name not in found:
            found.append(name)
    return tuple(describe_op(OPS[name]) for name in found[:2])


def describe_op(spec: OpSpec) -> str:
    """Return signature, result and rules of one instruction as text."""
    lines = [spec.signature, f"  {spec.semantics}"]
    lines += [f"  - {rule}" for rule in spec.rules]
    lines.append(f"  example: {spec.example}")
    return "\n".join(lines)
