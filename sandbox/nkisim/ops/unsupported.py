"""Names of `nki.isa` that nkisim does not emulate, with the reason that a user reads."""

from __future__ import annotations

UNSUPPORTED: dict[str, str] = {
    "nc_matmul_mx": "MX packed types",
    "quantize_mx": "MX packed types",
    "activate2": "NeuronCore-v4 only, not written yet",
    "rng": "random numbers are not emulated",
    "rand2": "random numbers are not emulated",
    "dropout": "random numbers are not emulated",
    "set_rng_seed": "random numbers are not emulated",
    "rand_set_state": "random numbers are not emulated",
    "rand_get_state": "random numbers are not emulated",
    "sequence_bounds": "not written yet",
    "core_barrier": "only one core is emulated",
    "sendrecv": "only one core is emulated",
    "nonzero_with_count": "not written yet",
    "topk": "not written yet",
    "builtin_custom_op": "custom GpSimd code cannot run here",
    "tensor_copy_dynamic_src": "removed in NKI 0.4; use .ap(scalar_offset=…)",
    "tensor_copy_dynamic_dst": "removed in NKI 0.4; use .ap(scalar_offset=…)",
}
