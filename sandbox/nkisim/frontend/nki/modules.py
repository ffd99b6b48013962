"""Builds the `nki` module objects that are put into `sys.modules` for kernels to import.

Nothing here is a package on disk, so an installed vendor package is never shadowed by accident.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from difflib import get_close_matches
from enum import Enum, IntEnum
from types import ModuleType
from typing import NoReturn

from nkisim.dtypes import DTYPES
from nkisim.errors import KernelError, UnsupportedError
from nkisim.frontend.bind import InstructionHandle, Instructions, NlFunction, bind_isa
from nkisim.frontend.context import current, target_machine
from nkisim.frontend.jit import Runner, make_decorators
from nkisim.frontend.nki import composed, language
from nkisim.frontend.register import Register
from nkisim.frontend.tensor import NkiTensor
from nkisim.ops.registry import OpTable
from nkisim.ops.unsupported import UNSUPPORTED


class engine(Enum):
    """`nki.isa.engine`."""

    unknown = 0
    tensor = 1
    scalar = 2
    gpsimd = 3
    dma = 4
    vector = 5
    sync = 6


class reduce_cmd(Enum):
    """`nki.isa.reduce_cmd`."""

    idle = 0
    reset = 1
    reduce = 2
    reset_reduce = 3
    load_reduce = 4


class dge_mode(Enum):
    """`nki.isa.dge_mode`."""

    unknown = 0
    swdge = 1
    hwdge = 2
    none = 3


class oob_mode(Enum):
    """`nki.isa.oob_mode`."""

    error = 0
    skip = 1


class matmul_perf_mode(Enum):
    """`nki.isa.matmul_perf_mode`."""

    none = 0
    double_row = 1


class dma_engine(Enum):
    """`nki.isa.dma_engine`."""

    dma = 1
    gpsimd_dma = 2


class nc_version(IntEnum):
    """`nki.isa.nc_version`."""

    gen2 = 2
    gen3 = 3
    gen4 = 4


ENUMS: Mapping[str, type] = {
    "engine": engine,
    "reduce_cmd": reduce_cmd,
    "dge_mode": dge_mode,
    "oob_mode": oob_mode,
    "matmul_perf_mode": matmul_perf_mode,
    "dma_engine": dma_engine,
    "nc_version": nc_version,
}


class NameNotInNki(KernelError, AttributeError):
    """A name that NKI does not have; an AttributeError too, so that hasattr() works."""


class NotEmulated:
    """Stands for a name of NKI that nkisim does not emulate: it can be imported, not used."""

    def __init__(self, name: str, reason: str) -> None:
        self.__name__ = name
        self._reason = reason

    def __call__(self, *_: object, **__: object) -> NoReturn:
        raise UnsupportedError("NKS501", f"{self.__name__} is not emulated: {self._reason}")

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        self()

    def __repr__(self) -> str:
        return f"<{self.__name__}, not emulated>"


class NkiModule(ModuleType):
    """A module whose missing names are explained."""

    def __init__(
        self, name: str, members: Mapping[str, object], unsupported: Mapping[str, str]
    ) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.__dict__.update(members)
        self.__dict__.update(
            {n: NotEmulated(f"{name}.{n}", reason) for n, reason in unsupported.items()}
        )
        self.__dict__["__file__"] = f"<{name}>"

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        near = get_close_matches(name, [n for n in self.__dict__ if n[0] != "_"], n=3, cutoff=0.6)
        raise NameNotInNki(
            "NKS604",
            f"{self.__name__} has no {name!r}",
            hint=f"did you mean {', '.join(near)}?" if near else None,
        )


class TensorAnnotation:
    """`nki.typing.tensor[...]`: accepted as an annotation."""

    def __getitem__(self, shape: object) -> TensorAnnotation:
        return self


class ReplicaGroup:
    """`nki.collectives.ReplicaGroup`: disjoint lists of ranks."""

    def __init__(self, groups: object = ()) -> None:
        self.groups = groups


def get_nc_version() -> nc_version:
    """Return the NeuronCore version that the kernel is traced for."""
    return nc_version(target_machine().generation)


def get_nc_sub_version() -> int:
    """Return the silicon revision."""
    return 0


def register_alloc(x: int | Register | None = None) -> Register:
    """Return a new device register, set to `x` if given."""
    recorder = current()
    register = recorder.new_register()
    if x is not None:
        recorder.instructions.isa["register_move"](register, x)
    return register


def build_instructions(ops: OpTable) -> Instructions:
    """Bind the op table and the language functions."""
    functions: dict[str, NlFunction] = {}
    for name in language.BINARY_NAMES:
        functions[name] = NlFunction(name, language.binary_function(name))
    for name in language.UNARY_NAMES:
        functions[name] = NlFunction(name, language.unary_function(name))
    for name, op, is_mean in (
        ("sum", "add", False),
        ("max", "maximum", False),
        ("min", "minimum", False),
        ("prod", "multiply", False),
        ("mean", "add", True),
    ):
        call = language.reduction_function(op, is_mean=is_mean)
        functions[name] = NlFunction({"max": "maximum", "min": "minimum"}.get(name, name), call)
    for name, composition in composed.FUNCTIONS.items():
        functions[name] = NlFunction(name, composition)
    functions["copy"] = NlFunction("copy", language.copy)
    for name in language.TOKEN_NAMES:
        functions[name] = NlFunction(name)
    isa = bind_isa(ops)
    return Instructions(isa=isa, language=dict(functions))


def build_modules(ops: OpTable, run: Runner | None) -> tuple[dict[str, ModuleType], Instructions]:
    """Return the modules by import name, and the instructions that they call.

    Args:
        ops: The op table.
        run: Called when a jitted kernel is called outside a trace; None where that is refused.
    """
    instructions = build_instructions(ops)
    isa_members: dict[str, object] = {
        **instructions.isa,
        **ENUMS,
        "get_nc_version": get_nc_version,
        "get_nc_sub_version": get_nc_sub_version,
        "register_alloc": register_alloc,
        "VirtualRegister": Register,
        "NkiInstruction": InstructionHandle,
        "NkiValidationError": KernelError,
        "unknown_engine": engine.unknown,
        "tensor_engine": engine.tensor,
        "vector_engine": engine.vector,
        "scalar_engine": engine.scalar,
        "gpsimd_engine": engine.gpsimd,
    }
    language_members = {**language.EXPORTS, **instructions.language}
    decorators = make_decorators(run)
    isa = NkiModule("nki.isa", isa_members, UNSUPPORTED)
    constants = NkiModule("nki.isa.constants", dict(ENUMS), {})
    isa.__dict__["constants"] = constants
    nl = NkiModule("nki.language", language_members, {})
    typing = NkiModule(
        "nki.typing", {"tensor": TensorAnnotation(), "mutable_tensor": TensorAnnotation()}, {}
    )
    collectives = NkiModule("nki.collectives", {"ReplicaGroup": ReplicaGroup}, _collectives())
    dtype = NkiModule("nki.dtype", dict(DTYPES), {})
    meta = NkiModule("nki.meta", {"tensor": NkiTensor}, {})
    root = NkiModule(
        "nki",
        {
            **decorators,
            "isa": isa,
            "language": nl,
            "typing": typing,
            "collectives": collectives,
            "dtype": dtype,
            "meta": meta,
            "tensor": NkiTensor,
            "__version__": "0.6.0",
        },
        {},
    )
    experimental = NkiModule("nki.experimental", {"while_loop": language.while_loop}, {})
    root.__dict__["experimental"] = experimental
    modules = [root, isa, constants, nl, typing, collectives, dtype, meta, experimental]
    return {module.__name__: module for module in modules}, instructions


def _collectives() -> dict[str, str]:
    names = (
        "all_reduce all_gather all_gather_v reduce_scatter all_to_all all_to_all_v "
        "collective_permute collective_permute_implicit collective_permute_implicit_reduce "
        "collective_permute_implicit_current_processing_rank_id rank_id"
    )
    return dict.fromkeys(names.split(), "collectives over several cores are not emulated yet")


def machine_from_environment(environ: Mapping[str, str] | None = None) -> str | None:
    """Return the machine that NEURON_PLATFORM_TARGET_OVERRIDE names, if it is set."""
    return (os.environ if environ is None else environ).get("NEURON_PLATFORM_TARGET_OVERRIDE")
