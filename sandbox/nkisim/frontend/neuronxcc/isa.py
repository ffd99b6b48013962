"""`neuronxcc.nki.isa`: binds old signatures to rows of the op table.

Only what a table cannot say has code of its own: index expressions, transposes, memset.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np

from nkisim.dtypes import DTYPES
from nkisim.errors import KernelError, UnsupportedError
from nkisim.frontend.emission import issue, result_of
from nkisim.frontend.index import IndexTensor
from nkisim.frontend.neuronxcc.matrices import transposed
from nkisim.frontend.neuronxcc.promotion import wanted_dtype
from nkisim.frontend.neuronxcc.signatures import SIGNATURES, OldSignature
from nkisim.frontend.neuronxcc.tiles import copied, float_column, in_sbuf, new_tile, on_chip
from nkisim.frontend.predicate import Predicate, single_comparison
from nkisim.frontend.tensor import NkiTensor
from nkisim.ir.access import Memory
from nkisim.ops.registry import OpSpec

COMMON = ("mask", "dtype", "name")


class OldInstruction:
    """One instruction of the old generation."""

    def __init__(self, signature: OldSignature, spec: OpSpec) -> None:
        self.signature = signature
        self.spec = spec
        self.positional = tuple(signature.positional.split())
        self.names = frozenset((*self.positional, *signature.keywords.split()))
        self.__name__ = signature.name
        parts = [*self.positional, "*", *signature.keywords.split(), "mask=None", "dtype=None"]
        self.text = f"nisa.{signature.name}({', '.join(parts)})"
        self.__doc__ = f"{spec.summary}\n\n{self.text}"

    def __repr__(self) -> str:
        return f"nisa.{self.signature.name}"

    def __call__(self, *args: object, **kwargs: Any) -> NkiTensor | None:
        signature = self.signature
        mask, dtype = kwargs.pop("mask", None), kwargs.pop("dtype", None)
        kwargs.pop("name", None)
        if args:
            if len(args) > len(self.positional):
                raise self._error(f"takes {len(self.positional)} arguments by position")
            for name, value in zip(self.positional, args, strict=False):
                if name in kwargs:
                    raise self._error(f"got two values for argument {name!r}")
                kwargs[name] = value
        if not kwargs.keys() <= self.names:
            raise self._unknown(next(name for name in kwargs if name not in self.names))
        for name, value in signature.fixed:
            kwargs.setdefault(name, value)
        for name in signature.casts:
            operand = kwargs.get(name)
            if isinstance(operand, NkiTensor) and not operand.dtype.is_integer:
                kwargs[name] = float_column(operand)
        if signature.name == "nc_matmul":
            self._prepare_matmul(kwargs)
        if signature.result is None:
            self._into(kwargs, mask)
            return None
        shape, default, memory = signature.result(kwargs)
        element = default if dtype is None or memory == "psum" else wanted_dtype(dtype, default)
        tile = new_tile(shape, element, memory)
        return result_of(signature.spec_name, tile, mask, **kwargs)

    def _into(self, kwargs: dict[str, Any], mask: object) -> None:
        dst = kwargs.get("dst")
        if not isinstance(dst, NkiTensor):
            raise self._error(f"needs a tile or tensor as dst, got {type(dst).__name__}")
        if self.signature.name == "dma_copy":
            source = kwargs.get("src")
            if isinstance(source, NkiTensor) and source.memory is Memory.PSUM:
                kwargs["src"] = copied(source)
        if self.signature.name == "tensor_copy_predicated":
            source = kwargs.get("src")
            if isinstance(source, NkiTensor) and source.dtype != dst.dtype:
                cast = new_tile(source.shape, dst.dtype)
                result_of("tensor_copy", cast, mask, src=source)
                kwargs["src"] = cast
        issue(self.signature.spec_name, mask, **kwargs)
        dst.storage.has_values = True

    @staticmethod
    def _prepare_matmul(kwargs: dict[str, Any]) -> None:
        mode = kwargs.get("perf_mode")
        name = getattr(mode, "name", mode)
        if name not in (None, "none"):
            raise UnsupportedError(
                "NKS508", f"nc_matmul: perf_mode={name!r:.40} is not emulated yet"
            )
        kwargs.pop("perf_mode", None)
        for role in ("stationary", "moving"):
            operand = kwargs.get(role)
            if isinstance(operand, NkiTensor) and operand.memory is Memory.PSUM:
                kwargs[role] = copied(operand)

    def _unknown(self, name: str) -> KernelError:
        near = get_close_matches(name, self.names, n=1)
        return KernelError(
            "NKS601",
            f"{self.signature.name} has no argument {name!r}",
            allowed=self.text,
            hint=f"did you mean {near[0]!r}?" if near else None,
        )

    def _error(self, what: str) -> KernelError:
        return KernelError("NKS602", f"{self.signature.name} {what}", allowed=self.text)


# -- instructions with an index expression ------------------------------------------------------


def _pattern(expression: IndexTensor) -> tuple[list[list[int]], int, int]:
    """Return pattern, channel multiplier and offset of an affine expression [P, F, …]."""
    steps, shape = expression.form.coefficients, expression.shape
    pattern = [[step, n] for step, n in zip(steps[1:], shape[1:], strict=True) if n != 1]
    return pattern or [[0, 1]], steps[0], expression.constant


def iota(expr: object = None, dtype: object = None, mask: object = None, **_: object) -> NkiTensor:
    """Write the values of an index expression into a tile."""
    if not isinstance(expr, IndexTensor):
        raise KernelError(
            "NKS602",
            f"iota takes an affine expression of index tensors, got {type(expr).__name__}",
            hint="for example nisa.iota(nl.arange(512)[None, :], dtype=nl.int32)",
        )
    if expr.ndim < 2:
        raise KernelError(
            "NKS105",
            "an index tensor of one dimension has no partition axis",
            hint="write nl.arange(n)[:, None] or nl.arange(n)[None, :]",
        )
    tile = new_tile(expr.shape, wanted_dtype(dtype, DTYPES["int32"]))
    pattern, step, offset = _pattern(expr)
    return result_of("iota", tile, mask, pattern=pattern, offset=offset, channel_multiplier=step)


def affine_select(
    pred: object = None,
    on_true_tile: object = None,
    on_false_value: float = 0.0,
    mask: object = None,
    dtype: object = None,
    **_: object,
) -> NkiTensor:
    """Keep elements where an affine comparison of index tensors holds; others become a number."""
    tile = in_sbuf(on_chip(on_true_tile, "nisa.affine_select"))
    result = new_tile(tile.shape, wanted_dtype(dtype, tile.dtype))
    if isinstance(pred, (bool, np.bool_)):
        if pred:
            return result_of("tensor_copy", result, mask, src=tile)
        return result_of("memset", result, mask, value=on_false_value)
    if not isinstance(pred, Predicate):
        raise KernelError(
            "NKS602",
            f"affine_select: pred must compare index tensors, got {type(pred).__name__}",
        )
    test = single_comparison(pred)
    form = test.form.ranked(tile.ndim)
    if form.ndim != tile.ndim or any(
        step and n not in (1, extent)
        for step, n, extent in zip(form.coefficients, form.shape, tile.shape, strict=True)
    ):
        raise KernelError(
            "NKS107",
            f"affine_select: pred over {list(test.shape)} does not fit a tile {list(tile.shape)}",
        )
    steps = form.coefficients
    pattern = [[step, n] for step, n in zip(steps[1:], tile.shape[1:], strict=True) if n != 1]
    return result_of(
        "affine_select",
        result,
        _mask_without_shift(mask),
        pattern=pattern or [[0, 1]],
        channel_multiplier=steps[0],
        on_true_tile=tile,
        on_false_value=on_false_value,
        cmp_op="greater_equal",
        offset=test.constant,
    )


def _mask_without_shift(mask: object) -> object:
    """Return a mask that is a truth value; a box would shift the index pattern."""
    if isinstance(mask, Predicate):
        raise UnsupportedError(
            "NKS502",
            "a mask over index tensors on an instruction with an index pattern is not emulated",
            hint="mask the assignment of its result instead",
        )
    return mask


def memset(
    shape: Sequence[int],
    value: float,
    dtype: object = None,
    mask: object = None,
    engine: object = None,
    **_: object,
) -> NkiTensor:
    """Return a tile filled with a number."""
    tile = new_tile(tuple(int(n) for n in shape), wanted_dtype(dtype, DTYPES["float32"]))
    where = {} if engine is None else {"engine": engine}
    return result_of("memset", tile, mask, value=value, **where)


def nc_transpose(
    data: object,
    mask: object = None,
    dtype: object = None,
    engine: object = None,
    **_: object,
) -> NkiTensor:
    """Transpose a tile; the Tensor Engine's result is in PSUM."""
    tile = on_chip(data, "nisa.nc_transpose")
    result = transposed(tile, mask, engine=engine)
    wanted = wanted_dtype(dtype, result.dtype)
    if wanted == result.dtype:
        return result
    cast = new_tile(result.shape, wanted, "psum" if result.memory is Memory.PSUM else "sbuf")
    return result_of("tensor_copy", cast, None, src=result)


def build(isa: dict[str, Callable[..., object]]) -> dict[str, object]:
    """Return the old instructions, bound to the rows behind `isa`."""
    members: dict[str, object] = {
        "iota": iota,
        "affine_select": affine_select,
        "memset": memset,
        "nc_transpose": nc_transpose,
    }
    for signature in SIGNATURES:
        spec = isa[signature.spec_name].spec  # type: ignore[attr-defined]
        members[signature.name] = OldInstruction(signature, spec)
    return members
