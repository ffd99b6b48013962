"""Cards for prompts, made from the op table and the task: facts only, within a size budget."""

from __future__ import annotations

from nkisim.ops.registry import OpSpec
from nkisim.ops.table import OPS
from nkiwright.tasks import Dims, Task, TensorSpec

EVERYWHERE = (
    "dma_copy",
    "tensor_copy",
    "memset",
    "tensor_tensor",
    "tensor_scalar",
    "activation",
)
BY_OP_CLASS: dict[str, tuple[str, ...]] = {
    "elementwise": ("scalar_tensor_tensor",),
    "reduce": ("tensor_reduce", "activation_reduce", "reciprocal"),
    "norm": ("tensor_reduce", "activation_reduce", "bn_stats", "bn_aggr", "scalar_tensor_tensor"),
    "softmax": ("tensor_reduce", "activation_reduce", "reciprocal"),
    "matmul": ("nc_matmul", "nc_transpose", "dma_transpose", "scalar_tensor_tensor"),
    "attention": (
        "nc_matmul",
        "nc_transpose",
        "tensor_reduce",
        "activation_reduce",
        "reciprocal",
        "affine_select",
    ),
    "scan": ("tensor_tensor_scan",),
    "layout": ("nc_transpose", "dma_transpose"),
    "conv": ("nc_matmul", "nc_transpose", "scalar_tensor_tensor"),
    "gather": ("iota", "nc_n_gather", "local_gather"),
    "other": ("tensor_reduce", "nc_matmul", "nc_transpose", "scalar_tensor_tensor", "iota"),
}
MAX_CHARS = 14_000


def isa_card(op_class: str, *, generation: int, max_chars: int = MAX_CHARS) -> str:
    """Return signature, result, rules and an example of each instruction that a task may need."""
    parts: list[str] = []
    used = 0
    for name in (*EVERYWHERE, *BY_OP_CLASS.get(op_class, BY_OP_CLASS["other"])):
        if name not in OPS or OPS[name].min_generation > generation:
            continue
        text = _op(OPS[name])
        if used + len(text) > max_chars:
            break
        parts.append(text)
        used += len(text)
    return "\n\n".join(parts)


def _op(spec: OpSpec) -> str:
    engines = "DMA" if spec.is_dma else " or ".join(engine.value for engine in spec.engines)
    lines = [f"`{spec.signature}`", f"{spec.summary} Engine: {engines}. {spec.semantics}"]
    lines += [f"- {rule}" for rule in spec.rules]
    lines.append(f"- example: `{spec.example}`")
    return "\n".join(lines)


def tensor_lines(task: Task) -> str:
    """Describe the tensors of a task at its main shape."""
    lines = [_tensor("input", spec, task.main) for spec in task.inputs]
    lines += [f"- scalar `{name}` = {value}" for name, value in task.scalars.items()]
    lines += [_tensor("returns", spec, task.main) for spec in task.outputs]
    return "\n".join(lines)


def _tensor(kind: str, spec: TensorSpec, dims: Dims) -> str:
    symbols = ", ".join(str(size) for size in spec.shape)
    return f"- {kind} `{spec.name}` [{symbols}] = {list(spec.resolve(dims))} {spec.dtype} in HBM"


def call_text(task: Task) -> str:
    """Return the call of a task's kernel as text."""
    parts = [spec.name for spec in task.inputs]
    parts += [f"{name}={value!r}" for name, value in task.scalars.items()]
    return f"kernel({', '.join(parts)})"


def dims_text(dims: Dims) -> str:
    """Return sizes as text, such as `n=128, d=256`."""
    return ", ".join(f"{name}={size}" for name, size in dims.items())
