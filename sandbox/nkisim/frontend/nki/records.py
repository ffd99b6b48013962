"""`nl.NKIObject`: the base of kernels' own record types.

The NKI compiler builds such objects from keyword arguments for the fields that a class names,
annotated or merely assigned, with or without `@dataclass`; a field that a call leaves out is unset
and only reading it is an error.  Source: NKI language guide, class support; public kernels.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

from nkisim.errors import KernelError


class NKIObjectType(type):
    """Builds instances of NKIObject classes; fields of a dataclass may stay unset."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Construct an instance."""
        if "__dataclass_fields__" not in cls.__dict__ or not _has_generated_init(cls):
            return super().__call__(*args, **kwargs)
        fields = [f for f in dataclasses.fields(cls) if f.init]  # type: ignore[arg-type]
        given = {f.name for f in fields[: len(args)]} | set(kwargs)
        unset = [
            f.name
            for f in fields
            if f.name not in given
            and f.default is dataclasses.MISSING
            and f.default_factory is dataclasses.MISSING
        ]
        assigned = set(field_names(cls)) - {f.name for f in fields}
        later = {name: kwargs.pop(name) for name in assigned & set(kwargs)}
        made = super().__call__(*args, **kwargs, **dict.fromkeys(unset))
        for name, value in later.items():
            object.__setattr__(made, name, value)
        for name in unset:
            if made.__dict__.get(name, 0) is None:  # not set by __post_init__ either
                object.__delattr__(made, name)
        return made


def _has_generated_init(cls: type) -> bool:
    """Whether `@dataclass` wrote the constructor, which it leaves alone where a class has one."""
    code = getattr(cls.__dict__.get("__init__"), "__code__", None)
    return code is not None and code.co_filename == "<string>"


class NKIObject(metaclass=NKIObjectType):
    """Base class for kernels' own record types."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Set fields by position or name."""
        names = field_names(type(self))
        if len(args) > len(names):
            raise KernelError(
                "NKS602",
                f"{type(self).__name__} has {len(names)} fields, got {len(args)} arguments",
                allowed=", ".join(names) or "no fields",
            )
        given = dict(zip(names, args, strict=False))
        for name, value in kwargs.items():
            if name not in names or name in given:
                why = "got two values for" if name in given else "has no"
                raise KernelError(
                    "NKS602",
                    f"{type(self).__name__} {why} field {name!r}",
                    allowed=", ".join(names) or "no fields",
                )
            given[name] = value
        for name, value in given.items():
            setattr(self, name, value)
        after = getattr(self, "__post_init__", None)
        if after is not None:
            after()


def field_names(cls: type) -> list[str]:
    """Return the fields that a class names, base classes first."""
    names: dict[str, None] = {}
    for base in reversed(cls.__mro__[:-1]):
        for name in inspect.get_annotations(base):
            names.setdefault(name)
        for name, value in base.__dict__.items():
            if name.startswith("__") or callable(value) or hasattr(value, "__get__"):
                continue
            names.setdefault(name)
    return list(names)
