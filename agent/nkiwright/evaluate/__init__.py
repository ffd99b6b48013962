"""The judge: from a kernel's source to a verdict that can be defended.

A cascade, cheap to costly, that stops at the first failure: static rules, trace and machine rules,
smallest shape, main shape on secret seeds, emulated time against the proved floor.
"""

from nkiwright.evaluate.judge import Judge, JudgeOptions
from nkiwright.evaluate.model import Evaluation, Stage, Verdict

__all__ = ["Evaluation", "Judge", "JudgeOptions", "Stage", "Verdict"]
