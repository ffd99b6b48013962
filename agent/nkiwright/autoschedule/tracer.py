"""Runs a numpy reference without values and records what it asks numpy for.

The arguments are `Traced` arrays: they know shapes only and implement numpy's two override
protocols, so ordinary numpy code runs on them unchanged.  Whatever would need a value (a branch, a
conversion to float) or is not recorded yet raises NotCovered with the reference's line.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn, cast

import numpy as np
import numpy.typing as npt
from numpy.lib.mixins import NDArrayOperatorsMixin

from nkiwright.autoschedule.graph import Attr, Graph, GraphBuilder, Op, Shape
from nkiwright.autoschedule.problem import Dims, NotCovered, Problem

_UFUNCS: dict[np.ufunc, Op] = {
    np.exp: Op.EXP,
    np.log: Op.LOG,
    np.sqrt: Op.SQRT,
    np.square: Op.SQUARE,
    np.reciprocal: Op.RECIPROCAL,
    np.tanh: Op.TANH,
    np.absolute: Op.ABS,
    np.fabs: Op.ABS,
    np.sign: Op.SIGN,
    np.sin: Op.SIN,
    np.arctan: Op.ARCTAN,
    np.positive: Op.COPY,
    np.add: Op.ADD,
    np.subtract: Op.SUBTRACT,
    np.multiply: Op.MULTIPLY,
    np.divide: Op.DIVIDE,
    np.maximum: Op.MAXIMUM,
    np.fmax: Op.MAXIMUM,
    np.minimum: Op.MINIMUM,
    np.fmin: Op.MINIMUM,
    np.power: Op.POWER,
    np.float_power: Op.POWER,
    np.equal: Op.EQUAL,
    np.not_equal: Op.NOT_EQUAL,
    np.greater: Op.GREATER,
    np.greater_equal: Op.GREATER_EQUAL,
    np.less: Op.LESS,
    np.less_equal: Op.LESS_EQUAL,
}


def trace(problem: Problem, dims: Dims) -> Graph:
    """Return the graph of a problem's reference at one set of sizes.

    Raises:
        NotCovered: The reference does something that cannot be recorded.
    """
    recorder = _Recorder(problem.reference)
    arguments = {
        spec.name: recorder.array(
            recorder.builder.add(Op.INPUT, shape=spec.resolve(dims), name=spec.name)
        )
        for spec in problem.inputs
    }
    try:
        with np.errstate(all="ignore"):
            result = problem.reference(**arguments, **problem.scalars)
    except NotCovered:
        raise
    except Exception as exc:
        line = _line_of(exc, recorder.filename)
        raise NotCovered(
            f"this reference: without values it raised {type(exc).__name__}: {exc}", line=line
        ) from exc
    results = result if isinstance(result, tuple | list) else (result,)
    if len(results) != len(problem.outputs):
        raise NotCovered(f"{len(results)} results where {len(problem.outputs)} are declared")
    numbers = []
    for spec, value in zip(problem.outputs, results, strict=True):
        array = recorder.lift(value)
        if array.shape != spec.resolve(dims):
            raise NotCovered(
                f"output {spec.name!r} of shape {list(array.shape)} declared as "
                f"{list(spec.resolve(dims))}"
            )
        numbers.append(array.node)
    return recorder.builder.finish(tuple(numbers))


def _line_of(exc: BaseException, filename: str) -> int | None:
    line = None
    frame = exc.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == filename:
            line = frame.tb_lineno
        frame = frame.tb_next
    return line


class _Recorder:
    """One run of one reference."""

    def __init__(self, reference: Callable[..., object]) -> None:
        self.builder = GraphBuilder()
        code = getattr(reference, "__code__", None)
        self.filename: str = "" if code is None else code.co_filename

    @property
    def line(self) -> int:
        """Line of the reference that is running."""
        frame = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_filename == self.filename:
                return frame.f_lineno
            if frame.f_back is None:
                break
            frame = frame.f_back
        return 0

    def array(self, node: int) -> Traced:
        return Traced(self, node)

    def refuse(self, what: str) -> NoReturn:
        raise NotCovered(what, line=self.line or None)

    def lift(self, value: object) -> Traced:
        """Return anything that numpy would take as an operand as a traced array."""
        if isinstance(value, Traced):
            return value
        if isinstance(value, list | tuple) and any(isinstance(v, Traced) for v in value):
            self.refuse("lists of arrays as an operand")
        array = np.asarray(value)
        if array.dtype.kind not in "biuf":
            self.refuse(f"operands of type {type(value).__name__}")
        return self.array(self._constant(array.astype(np.float64)))

    def _constant(self, array: npt.NDArray[np.float64]) -> int:
        line = self.line
        first = float(array.flat[0]) if array.size else 0.0
        if array.size and np.array_equal(array, np.full_like(array, first), equal_nan=True):
            number = self.builder.scalar(first, line)
            if array.shape == ():
                return number
            return self.builder.add(Op.RESHAPE, (number,), shape=array.shape, line=line)
        if array.ndim == 2 and (mask := _triangle(array)) is not None:
            offset, high, low = mask
            return self.builder.add(
                Op.MASK, shape=array.shape, line=line, offset=offset, high=high, low=low
            )
        digest = f"{array.shape}:{hash(array.tobytes())}"
        return self.builder.add(Op.TABLE, shape=array.shape, line=line, digest=digest)

    def element(self, op: Op, *operands: object) -> Traced:
        """Record an element function of broadcast operands."""
        arrays = [self.lift(o) for o in operands]
        try:
            shape = np.broadcast_shapes(*(a.shape for a in arrays))
        except ValueError:
            self.refuse(f"{op} of shapes {' and '.join(str(list(a.shape)) for a in arrays)}")
        node = self.builder.add(op, tuple(a.node for a in arrays), shape=shape, line=self.line)
        return self.array(node)

    def reduce(self, op: Op, operand: object, axis: object, keepdims: object) -> Traced:
        """Record a reduction over the last axis; keepdims=False becomes a reshape."""
        array = self.lift(operand)
        if isinstance(axis, tuple) and len(axis) == 1:
            axis = axis[0]
        if axis is None and array.ndim == 1:
            axis = 0
        if not isinstance(axis, int | np.integer):
            self.refuse(f"{op} over axis {axis!r}; only one axis, the last, is reduced")
        if int(axis) % max(array.ndim, 1) != array.ndim - 1:
            self.refuse(f"{op} over axis {axis}, which is not the last")
        shape = (*array.shape[:-1], 1)
        node = self.builder.add(op, (array.node,), shape=shape, line=self.line)
        result = self.array(node)
        return result if keepdims is True else result.reshape(array.shape[:-1])

    def matmul(self, left: object, right: object) -> Traced:
        """Record a product of two matrices."""
        a, b = self.lift(left), self.lift(right)
        if a.ndim != 2 or b.ndim != 2:
            self.refuse(f"matmul of ranks {a.ndim} and {b.ndim}; both must be matrices")
        if a.shape[1] != b.shape[0]:
            self.refuse(f"matmul of {list(a.shape)} and {list(b.shape)}")
        shape = (a.shape[0], b.shape[1])
        node = self.builder.add(Op.MATMUL, (a.node, b.node), shape=shape, line=self.line)
        return self.array(node)

    def concatenate(self, parts: Sequence[object], axis: int) -> Traced:
        """Record a concatenation along the last axis."""
        arrays = [self.lift(p) for p in parts]
        rank = arrays[0].ndim
        if axis % rank != rank - 1:
            self.refuse(f"concatenate along axis {axis}, which is not the last")
        width = sum(a.shape[-1] for a in arrays)
        node = self.builder.add(
            Op.CONCAT,
            tuple(a.node for a in arrays),
            shape=(*arrays[0].shape[:-1], width),
            line=self.line,
        )
        return self.array(node)


def _triangle(array: npt.NDArray[np.float64]) -> tuple[int, float, float] | None:
    """Recognise a matrix of two values split along a diagonal: (offset, high, low)."""
    rows, columns = array.shape
    high, low = float(array[-1, 0]), float(array[0, -1])
    first_row = int((array[0] == high).sum())
    offset = first_row - 1 if first_row else -int((array[:, 0] != high).sum())
    kept = np.tri(rows, columns, offset, dtype=bool)
    expected = np.where(kept, high, low)
    return (offset, high, low) if np.array_equal(array, expected) else None


class Traced(NDArrayOperatorsMixin):
    """An array without values, as the reference sees it."""

    __slots__ = ("_has_views", "_recorder", "node")
    __array_priority__ = 100.0

    def __init__(self, recorder: _Recorder, node: int) -> None:
        self._recorder = recorder
        self._has_views = False
        self.node = node

    @property
    def shape(self) -> Shape:
        """Sizes at which the function is being traced."""
        return self._recorder.builder[self.node].shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def dtype(self) -> np.dtype[np.float64]:
        """References compute in float64."""
        return np.dtype(np.float64)

    @property
    def T(self) -> Traced:
        """Axes reversed."""
        return self.transpose()

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"Traced({list(self.shape)})"

    # -- what has no answer without values -------------------------------------------------------

    def __bool__(self) -> bool:
        self._recorder.refuse("branches on values")

    def __float__(self) -> float:
        self._recorder.refuse("conversion of an array to a Python number")

    def __int__(self) -> int:
        self._recorder.refuse("conversion of an array to a Python number")

    def __array__(self, *args: object, **kwargs: object) -> npt.NDArray[np.float64]:
        self._recorder.refuse("a conversion to a numpy array with values")

    def __setitem__(self, key: object, value: object) -> None:
        self._recorder.refuse("assignment to parts of an array")

    def __iter__(self) -> NoReturn:
        self._recorder.refuse("iteration over an array")

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        self._recorder.refuse(f"the array method {name!r}")

    # -- numpy's protocols -------------------------------------------------------------------------

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: object, **kwargs: object
    ) -> Traced:
        recorder = self._recorder
        out = kwargs.pop("out", None)
        if out is not None:
            return self._overwrite(out, self.__array_ufunc__(ufunc, method, *inputs, **kwargs))
        extra = {k: v for k, v in kwargs.items() if k not in ("dtype", "casting") and v is not None}
        if ufunc is np.matmul and method == "__call__" and not extra:
            return recorder.matmul(*inputs)
        if method == "reduce":
            ops = {np.add: Op.SUM, np.maximum: Op.MAX, np.minimum: Op.MIN}
            keepdims = extra.pop("keepdims", False)
            axis = extra.pop("axis", None if "axis" in kwargs else 0)
            if ufunc in ops and not extra:
                return recorder.reduce(ops[ufunc], inputs[0], axis, keepdims)
        if method == "accumulate" and ufunc is np.add:
            return _cumsum(recorder.lift(inputs[0]), cast("int", extra.get("axis", 0)))
        if method != "__call__" or extra:
            options = "".join(f", {k}" for k in extra)
            recorder.refuse(f"numpy.{ufunc.__name__} ({method}{options})")
        if ufunc is np.negative:
            return recorder.element(Op.MULTIPLY, inputs[0], -1.0)
        if ufunc is np.log1p:
            return recorder.element(Op.LOG, recorder.element(Op.ADD, inputs[0], 1.0))
        if ufunc is np.exp2:
            return recorder.element(Op.EXP, recorder.element(Op.MULTIPLY, inputs[0], math.log(2.0)))
        if ufunc not in _UFUNCS:
            recorder.refuse(f"numpy.{ufunc.__name__}")
        return recorder.element(_UFUNCS[ufunc], *inputs)

    def __array_function__(
        self,
        function: Callable[..., object],
        types: object,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
    ) -> object:
        handler = _FUNCTIONS.get(function)
        if handler is None:
            self._recorder.refuse(f"numpy.{function.__name__}")
        try:
            return handler(self._recorder, *args, **kwargs)
        except TypeError as exc:
            if isinstance(exc.__cause__, NotCovered) or "argument" not in str(exc):
                raise
            self._recorder.refuse(f"these arguments of numpy.{function.__name__} ({exc})")

    # -- methods -----------------------------------------------------------------------------------

    def astype(self, dtype: npt.DTypeLike, **_: object) -> Traced:
        """Keep floats as they are; other dtypes would need values."""
        if np.dtype(dtype).kind != "f":
            self._recorder.refuse(f"astype({np.dtype(dtype).name})")
        return self

    def copy(self, *_: object, **__: object) -> Traced:
        """Return the same array: it never changes."""
        return self

    def sum(self, axis: object = None, keepdims: bool = False, **_: object) -> Traced:
        """Record a sum over the last axis."""
        return self._recorder.reduce(Op.SUM, self, axis, keepdims)

    def mean(self, axis: object = None, keepdims: bool = False, **_: object) -> Traced:
        """Record a mean over the last axis."""
        return self._recorder.reduce(Op.MEAN, self, axis, keepdims)

    def max(self, axis: object = None, keepdims: bool = False, **_: object) -> Traced:
        """Record a maximum over the last axis."""
        return self._recorder.reduce(Op.MAX, self, axis, keepdims)

    def min(self, axis: object = None, keepdims: bool = False, **_: object) -> Traced:
        """Record a minimum over the last axis."""
        return self._recorder.reduce(Op.MIN, self, axis, keepdims)

    def var(
        self, axis: object = None, keepdims: bool = False, ddof: int = 0, **_: object
    ) -> Traced:
        """Record a population variance over the last axis."""
        if ddof:
            self._recorder.refuse(f"var with ddof={ddof}")
        return self._recorder.reduce(Op.VAR, self, axis, keepdims)

    def std(
        self, axis: object = None, keepdims: bool = False, ddof: int = 0, **_: object
    ) -> Traced:
        """Record a population standard deviation over the last axis."""
        return self._recorder.element(Op.SQRT, self.var(axis, keepdims, ddof))

    def cumsum(self, axis: int | None = None, **_: object) -> Traced:
        """Record a running sum over the last axis."""
        return _cumsum(self, axis)

    def dot(self, other: object) -> Traced:
        """Record a matrix product."""
        return self._recorder.matmul(self, other)

    def transpose(self, *axes: object) -> Traced:
        """Record a permutation of the axes."""
        if len(axes) == 1 and isinstance(axes[0], tuple | list):
            axes = tuple(axes[0])
        order = tuple(int(cast("int", a)) % self.ndim for a in axes if a is not None)
        order = order or tuple(reversed(range(self.ndim)))
        if order == tuple(range(self.ndim)):
            return self
        shape = tuple(self.shape[a] for a in order)
        return self._make(Op.PERMUTE, shape, order=order)

    def swapaxes(self, first: int, second: int) -> Traced:
        """Record a permutation of two axes."""
        order = list(range(self.ndim))
        order[first], order[second] = order[second], order[first]
        return self.transpose(*order)

    def reshape(self, *shape: object, **_: object) -> Traced:
        """Record a reshape."""
        if len(shape) == 1 and isinstance(shape[0], tuple | list):
            shape = tuple(shape[0])
        sizes = [int(cast("int", n)) for n in shape]
        if sizes.count(-1) == 1:
            known = -math.prod(sizes)
            sizes[sizes.index(-1)] = self.size // max(known, 1)
        if math.prod(sizes) != self.size:
            self._recorder.refuse(f"reshape of {list(self.shape)} to {sizes}")
        return self if tuple(sizes) == self.shape else self._make(Op.RESHAPE, tuple(sizes))

    def ravel(self) -> Traced:
        """Record a reshape to one axis."""
        return self.reshape(self.size)

    def clip(self, low: object = None, high: object = None) -> Traced:
        """Record a clamp."""
        result = self
        if low is not None:
            result = self._recorder.element(Op.MAXIMUM, result, low)
        if high is not None:
            result = self._recorder.element(Op.MINIMUM, result, high)
        return result

    def __getitem__(self, key: object) -> Traced:
        items = list(key) if isinstance(key, tuple) else [key]
        given = sum(1 for item in items if item is not None and item is not Ellipsis)
        if Ellipsis in [i for i in items if i is None or i is Ellipsis]:
            at = next(i for i, item in enumerate(items) if item is Ellipsis)
            items[at : at + 1] = [slice(None)] * (self.ndim - given)
        else:
            items += [slice(None)] * (self.ndim - given)
        bounds: list[tuple[int, int, int]] = []
        shape: list[int] = []
        final: list[int] = []
        for item in items:
            if item is None:
                final.append(1)
                continue
            size = self.shape[len(bounds)]
            if isinstance(item, slice):
                start, stop, step = item.indices(size)
                if step < 1:
                    self._recorder.refuse("slices that run backwards")
                count = len(range(start, stop, step))
                final.append(count)
            elif isinstance(item, int | np.integer):
                start, step, count = int(item) % size, 1, 1
            else:
                self._recorder.refuse(f"an index of type {type(item).__name__}")
            bounds.append((start, min(size, start + count * step), step))
            shape.append(count)
        result = self
        if tuple(shape) != self.shape:
            result = self._make(Op.SLICE, tuple(shape), bounds=tuple(bounds))
        return result.reshape(tuple(final))

    def _make(self, op: Op, shape: Shape, **attrs: Attr) -> Traced:
        recorder = self._recorder
        node = recorder.builder.add(op, (self.node,), shape=shape, line=recorder.line, **attrs)
        result = recorder.array(node)
        if op is not Op.CUMSUM:
            self._has_views = result._has_views = True
        return result

    def _overwrite(self, out: object, result: Traced) -> Traced:
        """Let `out` stand for `result` from now on, as `x += y` asks."""
        target = out[0] if isinstance(out, tuple) and len(out) == 1 else out
        if not isinstance(target, Traced) or target.shape != result.shape:
            self._recorder.refuse("writing into an array of other shape or kind")
        if target._has_views:
            self._recorder.refuse("writing into an array of which there are views")
        target.node = result.node
        return target


def _cumsum(array: Traced, axis: int | None = None) -> Traced:
    recorder = array._recorder
    if axis is None and array.ndim == 1:
        axis = 0
    if axis is None or axis % array.ndim != array.ndim - 1:
        recorder.refuse(f"cumsum over axis {axis}; only the last is covered")
    return array._make(Op.CUMSUM, array.shape)


def _where(r: _Recorder, condition: object, x: object, y: object) -> Traced:
    return r.element(Op.WHERE, condition, x, y)


def _clip(
    r: _Recorder, array: object, a_min: object = None, a_max: object = None, **_: object
) -> Traced:
    return r.lift(array).clip(a_min, a_max)


def _reducer(name: str) -> Callable[..., object]:
    def handler(
        r: _Recorder,
        array: object,
        axis: object = None,
        *,
        keepdims: bool = False,
        ddof: int = 0,
        dtype: object = None,
    ) -> object:
        extra = {"ddof": ddof} if ddof else {}
        return getattr(r.lift(array), name)(axis, keepdims is True, **extra)

    return handler


def _concatenate(r: _Recorder, arrays: Sequence[object], axis: int = 0) -> Traced:
    return r.concatenate(arrays, axis)


def _split(r: _Recorder, array: Traced, sections: object, axis: int = 0) -> list[Traced]:
    if axis % array.ndim != array.ndim - 1 or not isinstance(sections, int):
        r.refuse("split along an axis that is not the last, or into unequal parts")
    width = array.shape[-1] // sections
    return [array[..., i * width : (i + 1) * width] for i in range(sections)]


def _fill_like(value: float) -> Callable[..., object]:
    def handler(r: _Recorder, array: Traced, **_: object) -> npt.NDArray[np.float64]:
        return np.full(array.shape, value)

    return handler


def _expand_dims(r: _Recorder, array: Traced, axis: int) -> Traced:
    shape = list(array.shape)
    shape.insert(axis % (array.ndim + 1), 1)
    return array.reshape(tuple(shape))


def _squeeze(r: _Recorder, array: Traced, axis: int | None = None) -> Traced:
    at = range(array.ndim) if axis is None else [axis % array.ndim]
    return array.reshape(tuple(n for i, n in enumerate(array.shape) if not (i in at and n == 1)))


def _triangle_of(keep_lower: bool) -> Callable[..., object]:
    def handler(r: _Recorder, array: Traced, k: int = 0) -> Traced:
        lower = np.tri(array.shape[-2], array.shape[-1], k if keep_lower else k - 1)
        return (
            r.element(Op.WHERE, lower, array, 0.0)
            if keep_lower
            else r.element(Op.WHERE, lower, 0.0, array)
        )

    return handler


_FUNCTIONS: dict[Callable[..., object], Callable[..., object]] = {
    np.where: _where,
    np.clip: _clip,
    np.sum: _reducer("sum"),
    np.mean: _reducer("mean"),
    np.max: _reducer("max"),
    np.amax: _reducer("max"),
    np.min: _reducer("min"),
    np.amin: _reducer("min"),
    np.var: _reducer("var"),
    np.std: _reducer("std"),
    np.cumsum: lambda r, a, axis=None: _cumsum(r.lift(a), axis),
    np.dot: lambda r, a, b: r.matmul(a, b),
    np.transpose: lambda r, a, axes=None: a.transpose(*(axes or ())),
    np.swapaxes: lambda r, a, first, second: a.swapaxes(first, second),
    np.reshape: lambda r, a, shape: a.reshape(shape),
    np.ravel: lambda r, a: a.ravel(),
    np.copy: lambda r, a: a,
    np.shape: lambda r, a: a.shape,
    np.ndim: lambda r, a: a.ndim,
    np.size: lambda r, a: a.size,
    np.concatenate: _concatenate,
    np.hstack: lambda r, arrays: r.concatenate(arrays, -1),
    np.split: _split,
    np.array_split: _split,
    np.ones_like: _fill_like(1.0),
    np.zeros_like: _fill_like(0.0),
    np.full_like: lambda r, a, value, **_: np.full(a.shape, value),
    np.expand_dims: _expand_dims,
    np.squeeze: _squeeze,
    np.tril: _triangle_of(True),
    np.triu: _triangle_of(False),
}
