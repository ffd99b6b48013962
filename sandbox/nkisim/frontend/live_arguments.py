"""Arguments of a kernel of this process: arrays become tensors, everything else stays itself.

A traced function of this process may take any Python object (records, enums, functions), so
nothing is described as data; only arrays are found and replaced, wherever containers and plain
records hold them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nkisim.dtypes import lookup
from nkisim.frontend.arguments import Construct, Symbol, TensorSpec, describe

Array = npt.NDArray[np.generic]
Leaf = Array | Construct | Symbol | TensorSpec
Replace = Callable[[Leaf, str], object]


def as_array(value: object) -> Array | None:
    """Return the numpy array that `value` is or wraps on the host (a torch tensor), or None."""
    if isinstance(value, np.ndarray):
        return value
    kind = type(value)
    if kind.__module__.partition(".")[0] == "torch" and kind.__name__ in ("Tensor", "Parameter"):
        return _from_torch(value)
    return None


def _from_torch(value: Any) -> Array:
    """Return a view of a torch tensor's memory; numpy has no bfloat16 of its own."""
    tensor = value.detach().cpu()
    name = str(tensor.dtype).removeprefix("torch.")
    dtype = lookup(name)
    if dtype is None or dtype.kind == "packed" or name in ("float32", "int32"):
        return np.asarray(tensor.numpy())
    module = __import__("torch")
    bits = {1: module.uint8, 2: module.int16, 4: module.int32}[dtype.itemsize]
    return np.asarray(tensor.view(bits).numpy()).view(dtype.storage)


def replace_arrays(value: Any, replace: Replace, name: str = "") -> Any:
    """Return `value` with every array and descriptor in it replaced, in a fixed order.

    Args:
        value: An argument: an array, a container, a record with attributes, or anything else.
        replace: Called with each array or descriptor and a name for it.
        name: Name of the argument.
    """
    array = as_array(value)
    if array is not None:
        return replace(array, name)
    if isinstance(value, (Construct, Symbol, TensorSpec)):
        return replace(value, name)
    if isinstance(value, (tuple, list)):
        items = [replace_arrays(v, replace, f"{name}.{i}") for i, v in enumerate(value)]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        if hasattr(value, "_fields"):
            return type(value)(*items)
        return tuple(items) if isinstance(value, tuple) else items
    if isinstance(value, dict):
        return {k: replace_arrays(v, replace, f"{name}.{k}") for k, v in value.items()}
    if isinstance(value, (str, bytes, int, float, type, np.generic)) or callable(value):
        return value
    held = getattr(value, "__dict__", None)
    if not held:
        return value
    changed = {k: replace_arrays(v, replace, f"{name}.{k}") for k, v in held.items()}
    if all(changed[k] is v for k, v in held.items()):
        return value
    record = copy.copy(value)
    record.__dict__.update(changed)
    return record


def find_arrays(args: Sequence[object], kwargs: Mapping[str, object]) -> list[Array]:
    """Return the arrays of a call in the order in which a trace makes tensors of them."""
    found: list[Array] = []

    def note(leaf: Leaf, name: str) -> object:
        describe(leaf, found)
        return leaf

    for value in (*args, *kwargs.values()):
        replace_arrays(value, note)
    return found
