"""Keeps low-precision tensors in float32, to tell rounding from wrong arithmetic.

This is NKI's own switch NKI_PRECISE_FP=0.  Source: NKI simulator page, 0.4.
"""

from __future__ import annotations

from dataclasses import replace

from nkisim.dtypes import DTYPES, DType
from nkisim.errors import UnsupportedError
from nkisim.ir.access import Pattern
from nkisim.ir.program import Form, Operand, Program

LOW_PRECISION = frozenset(
    ("bfloat16", "float16", "tfloat32", "float8_e4m3", "float8_e4m3fn", "float8_e5m2")
)


def with_float32_storage(program: Program) -> Program:
    """Return a copy of `program` whose low-precision local tensors are float32.

    Arguments and outputs keep their dtypes.

    Raises:
        UnsupportedError: The kernel reinterprets bytes as another dtype, so element offsets would
            no longer agree.
    """
    widened = [
        buffer.kind == "local" and buffer.dtype.name in LOW_PRECISION for buffer in program.buffers
    ]
    if not any(widened):
        return program
    starts = program.operand_start
    forms: dict[Form, int] = {}
    column = program.form.copy()
    for i in range(len(program)):
        start = int(starts[i])
        form = program.forms[program.form[i]]
        operands: list[Operand] = []
        for k, operand in enumerate(form.operands):
            buffer = int(program.operand_buffer[start + k])
            if operand.memory.value != "register" and widened[buffer]:
                if operand.dtype != program.buffers[buffer].dtype:
                    raise UnsupportedError(
                        "NKS506",
                        "NKI_PRECISE_FP=0 with a tensor that is viewed as another dtype",
                        hint="unset NKI_PRECISE_FP",
                    )
                operand = replace(operand, pattern=_wide(operand.pattern))
            operands.append(operand)
        changed = Form(form.op, form.engine, form.attrs, tuple(operands))
        column[i] = forms.setdefault(changed, len(forms))
    float32 = DTYPES["float32"]
    buffers = tuple(
        replace(buffer, dtype=float32) if wide else buffer
        for buffer, wide in zip(program.buffers, widened, strict=True)
    )
    return replace(program, forms=tuple(forms), form=column, buffers=buffers)


def _wide(pattern: Pattern) -> Pattern:
    dtype: DType = DTYPES["float32"]
    return Pattern(pattern.counts, pattern.strides, dtype)
