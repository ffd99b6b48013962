"""The proof that comes with an accepted kernel: all that is needed to derive the result again."""

from __future__ import annotations

import hashlib
import platform
from typing import Any

import numpy as np

from nkisim._version import __version__ as emulator_version
from nkiwright.candidate import Candidate
from nkiwright.evaluate import JudgeOptions
from nkiwright.evaluate.judge import input_seeds
from nkiwright.tasks import Task

SCHEMA_VERSION = 1


def make_certificate(
    task: Task, candidate: Candidate, options: JudgeOptions, model: str
) -> dict[str, Any]:
    """Return the certificate of an accepted candidate.

    The secret seeds are revealed here: nothing is judged with them afterwards.
    """
    evaluation = candidate.evaluation
    if evaluation is None or not evaluation.is_correct or candidate.draft.source is None:
        raise ValueError(f"candidate {candidate.number} was not accepted")
    return {
        "schema_version": SCHEMA_VERSION,
        "claim": "emulated result: the kernel is correct on the inputs below and takes "
        "latency_ns in the emulator",
        "task": {"name": task.name, "hash": task.content_hash, "main": dict(task.main)},
        "kernel": {
            "sha256": hashlib.sha256(candidate.draft.source.encode()).hexdigest(),
            "fingerprint": evaluation.fingerprint,
            "instructions": evaluation.instructions,
            "nki": options.nki,
            "written_by": model,
        },
        "machine": options.machine,
        "emulator": emulator_version,
        "latency_ns": evaluation.latency_ns,
        "floor_ns": evaluation.floor_ns,
        "bound_ns": evaluation.bound_ns,
        "hbm_bytes": evaluation.hbm_bytes,
        "check": {
            "seeds": input_seeds(options),
            "rtol": task.check.rtol,
            "c": task.check.c,
            "error_ratio": evaluation.error_ratio,
        },
        "sandbox": list(evaluation.layers),
        "environment": {"numpy": np.__version__, "cpu": platform.machine()},
    }
