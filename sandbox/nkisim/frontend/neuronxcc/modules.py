"""Builds the `neuronxcc` modules that kernels of the first generation import."""

from __future__ import annotations

from enum import Enum
from types import ModuleType
from typing import NoReturn

from nkisim.errors import UnsupportedError
from nkisim.frontend.bind import Instructions
from nkisim.frontend.jit import Runner, make_decorators
from nkisim.frontend.neuronxcc import compiler, isa, language
from nkisim.frontend.nki.modules import (
    NkiModule,
    TensorAnnotation,
    engine,
    get_nc_version,
    matmul_perf_mode,
    nc_version,
    oob_mode,
    reduce_cmd,
)
from nkisim.frontend.tensor import NkiTensor
from nkisim.ops.unsupported import UNSUPPORTED


class dge_mode(Enum):
    """`neuronxcc.nki.isa.dge_mode`; its numbers differ from the newer ones."""

    none = 0
    swdge = 1
    hwdge = 2
    unknown = 3


ENUMS: dict[str, object] = {
    "engine": engine,
    "reduce_cmd": reduce_cmd,
    "dge_mode": dge_mode,
    "oob_mode": oob_mode,
    "matmul_perf_mode": matmul_perf_mode,
    "nc_version": nc_version,
}
KERNELS = (
    "attention_isa_kernel",
    "flash_fwd",
    "flash_attn_bwd",
    "fused_self_attn_for_SD_small_head_size",
    "resize_nearest_fixed_dma_kernel",
    "select_and_scatter_kernel",
    "rmsnorm_qkv_isa_kernel",
)
"""Kernels that ship with the vendor's package."""


def _shipped(name: str) -> object:
    """Return a kernel that the vendor's package ships: there, but refused when used."""

    def kernel(*_: object, **__: object) -> NoReturn:
        raise UnsupportedError(
            "NKS503",
            f"kernel {name!r} ships with neuronxcc and is not part of nkisim",
            hint="pass the kernel's own source",
        )

    class Shipped:
        """Callable, with and without a grid."""

        __call__ = staticmethod(kernel)

        def __getitem__(self, grid: object) -> object:
            return self

        def __repr__(self) -> str:
            return f"<kernel {name} of neuronxcc>"

    return Shipped()


def build_modules(instructions: Instructions, run: Runner | None) -> dict[str, ModuleType]:
    """Return the modules by import name.

    Args:
        instructions: The bound op table; its operators on tiles become the old ones.
        run: Called when a jitted kernel is called outside a trace; None where that is refused.
    """
    tokens = language.functions()
    instructions.operators = language.operators(tokens)
    isa_members: dict[str, object] = {
        **isa.build(instructions.isa),
        **ENUMS,
        "get_nc_version": get_nc_version,
        "unknown_engine": engine.unknown,
        "tensor_engine": engine.tensor,
        "vector_engine": engine.vector,
        "scalar_engine": engine.scalar,
        "gpsimd_engine": engine.gpsimd,
    }
    nisa = NkiModule("neuronxcc.nki.isa", isa_members, UNSUPPORTED)
    nisa_constants = NkiModule("neuronxcc.nki.isa.constants", ENUMS, {})
    nisa.__dict__["constants"] = nisa_constants
    missing = dict.fromkeys(language.SIMULATOR_ONLY, "not written yet")
    nl = NkiModule("neuronxcc.nki.language", {**language.EXPORTS, **tokens}, missing)
    nl_constants = NkiModule(
        "neuronxcc.nki.language.constants", {"sizeinbytes": language.size_in_bytes}, {}
    )
    nl.__dict__["constants"] = nl_constants
    typing = NkiModule(
        "neuronxcc.nki.typing",
        {
            "tensor": TensorAnnotation(),
            "mutable_tensor": TensorAnnotation(),
            "scalar": TensorAnnotation(),
        },
        {},
    )
    ncc = NkiModule("neuronxcc.nki.compiler", compiler.MEMBERS, {})
    shipped = {name: _shipped(name) for name in KERNELS}
    kernels = NkiModule("neuronxcc.nki.kernels", shipped, {})
    attention = NkiModule("neuronxcc.nki.kernels.attention", shipped, {})
    vision = NkiModule("neuronxcc.nki.kernels.vision", shipped, {})
    private = NkiModule("neuronxcc.nki._private_kernels", shipped, {})
    private_attention = NkiModule("neuronxcc.nki._private_kernels.attention", shipped, {})
    root = NkiModule(
        "neuronxcc.nki",
        {
            **make_decorators(run, is_beta1=True),
            "isa": nisa,
            "language": nl,
            "typing": typing,
            "compiler": ncc,
            "kernels": kernels,
            "tensor": NkiTensor,
        },
        {},
    )
    top = NkiModule("neuronxcc", {"nki": root, "__version__": "2.0"}, {})
    kernels.__dict__.update(attention=attention, vision=vision)
    modules = [top, root, nisa, nisa_constants, nl, nl_constants, typing, ncc]
    modules += [kernels, attention, vision, private, private_attention]
    return {module.__name__: module for module in modules}
