"""How fast the emulator itself is: microseconds per instruction of each stage, and what that means.

Two kernels of the same arithmetic, one in slices and one in index tensors of the first generation,
are traced at 1 k, 10 k and 100 k instructions and go through every stage.  Execution is compared
with numpy doing the same arithmetic on views that are ready, a tiled matmul with one numpy product.
Everything runs on one thread.

    python benchmarks/emulator.py [--sizes 1000 10000 100000] [--only stages matmul memory profile]
"""

import argparse
import ctypes
import gc
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import ml_dtypes  # noqa: E402  - numpy reads the number of threads when it is loaded
import numpy as np  # noqa: E402

import nkisim  # noqa: E402
from nkisim.api import resolve_machine, run_standalone  # noqa: E402
from nkisim.dtypes import DTYPES  # noqa: E402
from nkisim.execute.interpreter import Interpreter  # noqa: E402
from nkisim.execute.validate import validate  # noqa: E402
from nkisim.frontend.arguments import TensorSpec  # noqa: E402
from nkisim.frontend.trace import trace_kernel  # noqa: E402
from nkisim.ir.encode import decode, encode  # noqa: E402
from nkisim.ir.program import Program  # noqa: E402
from nkisim.memory.placement import place_tiles  # noqa: E402
from nkisim.ops.table import OPS  # noqa: E402
from nkisim.profile.model import profile_program  # noqa: E402
from nkisim.profile.what_if import IDEALS, what_if  # noqa: E402
from nkisim.timing.dependence import dependences_of  # noqa: E402
from nkisim.timing.scheduler import simulate  # noqa: E402

nkisim.install()

import neuronxcc.nki.isa as old_nisa  # type: ignore[import-not-found]  # noqa: E402
import neuronxcc.nki.language as old_nl  # type: ignore[import-not-found]  # noqa: E402
import nki.isa as nisa  # type: ignore[import-not-found]  # noqa: E402
import nki.language as nl  # type: ignore[import-not-found]  # noqa: E402

COLUMNS = 16
PER_TILE = 8
"""Instructions that each kernel below emits for a tile."""


def slices(x, y):
    """Load, add, scale, exponential, product over the partitions, copy, store; in slices."""
    tiles = x.shape[0] // 128
    out = nl.ndarray((tiles * COLUMNS, COLUMNS), dtype=x.dtype, buffer=nl.shared_hbm)
    for i in range(tiles):
        rows = slice(i * 128, (i + 1) * 128)
        a = nl.ndarray((128, COLUMNS), dtype=x.dtype, buffer=nl.sbuf)
        b = nl.ndarray((128, COLUMNS), dtype=x.dtype, buffer=nl.sbuf)
        c = nl.ndarray((128, COLUMNS), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=a, src=x[rows, :])
        nisa.dma_copy(dst=b, src=y[rows, :])
        nisa.tensor_tensor(dst=c, data1=a, data2=b, op=nl.add)
        nisa.tensor_scalar(dst=c, data=c, op0=nl.multiply, operand0=0.5)
        nisa.activation(dst=a, op=nl.exp, data=c)
        product = nl.ndarray((COLUMNS, COLUMNS), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=product, stationary=a, moving=c)
        result = nl.ndarray((COLUMNS, COLUMNS), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=result, src=product)
        nisa.dma_copy(dst=out[i * COLUMNS : (i + 1) * COLUMNS, :], src=result)
    return out


def index_tensors(x, y):
    """The same in index tensors."""
    tiles = x.shape[0] // 128
    out = old_nl.ndarray((tiles * COLUMNS, COLUMNS), dtype=x.dtype, buffer=old_nl.shared_hbm)
    for i in old_nl.affine_range(tiles):
        i_p = old_nl.arange(128)[:, None]
        i_f = old_nl.arange(COLUMNS)[None, :]
        i_q = old_nl.arange(COLUMNS)[:, None]
        a = old_nl.load(x[i * 128 + i_p, i_f])
        b = old_nl.load(y[i * 128 + i_p, i_f])
        c = old_nl.ndarray((128, COLUMNS), dtype=x.dtype, buffer=old_nl.sbuf)
        c[i_p, i_f] = old_nisa.tensor_tensor(a[i_p, i_f], b[i_p, i_f], op=np.add)
        c[i_p, i_f] = old_nisa.tensor_scalar(c[i_p, i_f], np.multiply, 0.5)
        a[i_p, i_f] = old_nisa.activation(np.exp, c[i_p, i_f])
        product = old_nl.zeros((COLUMNS, COLUMNS), dtype=old_nl.float32, buffer=old_nl.psum)
        product[i_q, i_f] += old_nisa.nc_matmul(a[i_p, i_f], c[i_p, i_f])
        result = old_nisa.tensor_copy(product[i_q, i_f], dtype=x.dtype)
        old_nl.store(out[i * COLUMNS + i_q, i_f], result[i_q, i_f])
    return out


def numpy_alone(x, y, out) -> Callable[[], None]:
    """Return the arithmetic of the kernels above, on views that are ready."""
    a, b, c = (np.empty((128, COLUMNS), np.float32) for _ in range(3))
    product, result = (np.empty((COLUMNS, COLUMNS), np.float32) for _ in range(2))
    a_t = a.T
    tiles = [
        (
            x[i * 128 : (i + 1) * 128],
            y[i * 128 : (i + 1) * 128],
            out[i * COLUMNS : (i + 1) * COLUMNS],
        )
        for i in range(len(x) // 128)
    ]
    copy, add, multiply, exp, matmul = np.copyto, np.add, np.multiply, np.exp, np.matmul
    half = np.float32(0.5)

    def run() -> None:
        for x_tile, y_tile, out_tile in tiles:
            copy(a, x_tile)
            copy(b, y_tile)
            add(a, b, out=c)
            multiply(c, half, out=c)
            exp(c, out=a)
            matmul(a_t, c, out=product)
            copy(result, product)
            copy(out_tile, result)

    return run


def matmul(a_t, b):
    """a_t.T @ b with both operands loaded once and kept in SBUF, block by block."""
    k, m = a_t.shape
    n = b.shape[1]
    out = nl.ndarray((m, n), dtype=a_t.dtype, buffer=nl.shared_hbm)
    left, right = [], []
    for k0 in range(0, k, 128):
        a_tile = nl.ndarray((128, m), dtype=a_t.dtype, buffer=nl.sbuf)
        b_tile = nl.ndarray((128, n), dtype=b.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=a_tile, src=a_t[k0 : k0 + 128, :])
        nisa.dma_copy(dst=b_tile, src=b[k0 : k0 + 128, :])
        left.append(a_tile)
        right.append(b_tile)
    for m0 in range(0, m, 128):
        for n0 in range(0, n, 512):
            acc = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
            for a_tile, b_tile in zip(left, right, strict=True):
                nisa.nc_matmul(
                    dst=acc, stationary=a_tile[:, m0 : m0 + 128], moving=b_tile[:, n0 : n0 + 512]
                )
            tile = nl.ndarray((128, 512), dtype=a_t.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=tile, src=acc)
            nisa.dma_copy(dst=out[m0 : m0 + 128, n0 : n0 + 512], src=tile)
    return out


def reloading_matmul(a_t, b):
    """a_t.T @ b with both operands loaded for every product of tiles: many instructions."""
    k, m = a_t.shape
    n = b.shape[1]
    out = nl.ndarray((m, n), dtype=a_t.dtype, buffer=nl.shared_hbm)
    for m0 in range(0, m, 128):
        for n0 in range(0, n, 512):
            acc = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
            for k0 in range(0, k, 128):
                left = nl.ndarray((128, 128), dtype=a_t.dtype, buffer=nl.sbuf)
                right = nl.ndarray((128, 512), dtype=b.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=left, src=a_t[k0 : k0 + 128, m0 : m0 + 128])
                nisa.dma_copy(dst=right, src=b[k0 : k0 + 128, n0 : n0 + 512])
                nisa.nc_matmul(dst=acc, stationary=left, moving=right)
            tile = nl.ndarray((128, 512), dtype=a_t.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=tile, src=acc)
            nisa.dma_copy(dst=out[m0 : m0 + 128, n0 : n0 + 512], src=tile)
    return out


# -- measuring ------------------------------------------------------------------------------------


def seconds(call: Callable[[], object], repeats: int = 3) -> float:
    """Return the least of several wall times."""
    best = float("inf")
    for _ in range(repeats):
        gc.collect()
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def trace(kernel, shape) -> Program:
    """Trace a kernel of two float32 or bfloat16 tensors."""
    machine = resolve_machine("trn2")
    specs = [TensorSpec(dims, DTYPES[dtype]) for dims, dtype in shape]
    return trace_kernel(kernel, specs, machine=machine, run=run_standalone).program


def elementwise_shape(instructions: int):
    rows = instructions // PER_TILE * 128
    return [((rows, COLUMNS), "float32")] * 2


def through_pipe(data: bytes) -> bytes:
    """Send bytes through a pipe, as a child does, and return what arrives."""
    read_end, write_end = os.pipe()

    def send() -> None:
        with os.fdopen(write_end, "wb") as stream:
            stream.write(data)

    sender = threading.Thread(target=send)
    sender.start()
    with os.fdopen(read_end, "rb") as stream:
        received = stream.read()
    sender.join()
    return received


def check(value: float, limit: float) -> str:
    return f"{'ok' if value <= limit else 'MISSED'} (aim {limit:g})"


def stages(kernel, trace_aim: float, sizes: list[int], *, is_executed: bool) -> None:
    """Print microseconds per instruction of every stage of one kernel."""
    machine = resolve_machine("trn2")
    rows: dict[str, list[float]] = {}
    counts = []
    for size in sizes:
        shape = elementwise_shape(size)
        repeats = 5 if size <= 10_000 else 2
        program = trace(kernel, shape)
        count = len(program)
        counts.append(count)

        def note(name: str, spent: float, count: int = count) -> None:
            rows.setdefault(name, []).append(1e6 * spent / count)

        note("trace", seconds(lambda s=shape: trace(kernel, s), repeats))
        note(
            "transfer and decode",
            seconds(lambda p=program: decode(through_pipe(encode(p))), repeats),
        )
        program = decode(encode(program))

        def fresh(program: Program = program) -> Program:
            """The Program without the columns that earlier stages cached on it."""
            return Program(**{name: getattr(program, name) for name in program.__match_args__})

        copies = [fresh() for _ in range(repeats)]
        note("validate", seconds(lambda c=copies: validate(c.pop(), machine), repeats))
        if is_executed:
            rng = np.random.default_rng(0)
            arrays = [rng.standard_normal(dims, np.float32) for dims, _ in shape]
            out = np.empty((len(arrays[0]) // 128 * COLUMNS, COLUMNS), np.float32)
            alone = seconds(numpy_alone(*arrays, out), repeats)
            plain = seconds(lambda p=program, a=arrays: Interpreter(p).run(a), repeats)
            note("numpy alone", alone)
            note("execute, above numpy", plain - alone)
            prepared = Interpreter(program)
            prepared.run(arrays)
            again = seconds(lambda i=prepared, a=arrays: i.run(a), repeats)
            note("execute again, above numpy", again - alone)
        placement = place_tiles(program, machine)
        note("place", seconds(lambda p=program: place_tiles(p, machine), repeats))
        dependences = dependences_of(program, machine, OPS, placement)
        found = seconds(lambda p=program, q=placement: dependences_of(p, machine, OPS, q), repeats)
        clock = seconds(lambda p=program, d=dependences: simulate(p, machine, OPS, d), repeats)
        note("dependences", found)
        note("schedule", clock)
        note("time (dependences, schedule)", found + clock)
        changed = machine.with_changes(next(iter(IDEALS.values())))
        note(
            "what-if re-timing",
            seconds(lambda p=program, m=changed, d=dependences: simulate(p, m, OPS, d), repeats),
        )
    aims = {
        "trace": trace_aim,
        "transfer and decode": 0.5,
        "validate": 0.5,
        "execute, above numpy": 4.0,
        "time (dependences, schedule)": 8.0,
        "what-if re-timing": 1.0,
    }
    print(f"\n{kernel.__name__}: microseconds per instruction")
    print(f"  {'instructions':<30}" + "".join(f"{count:>10,}" for count in counts))
    for name, values in rows.items():
        aim = check(values[-1], aims[name]) if name in aims else ""
        growth = values[-1] / values[0]
        print(
            f"  {name:<30}"
            + "".join(f"{value:>10.2f}" for value in values)
            + f"   x{growth:<5.2f} {aim}"
        )


def compare_matmul() -> None:
    """Print how much longer a tiled matmul takes than one numpy product."""
    size = 2048
    program = trace(matmul, [((size, size), "bfloat16")] * 2)
    validate(program, resolve_machine("trn2"))
    rng = np.random.default_rng(0)
    a_t, b = (
        rng.standard_normal((size, size), np.float32).astype(ml_dtypes.bfloat16) for _ in range(2)
    )
    a32, b32 = np.ascontiguousarray(a_t.T.astype(np.float32)), b.astype(np.float32)
    alone = seconds(lambda: a32 @ b32)
    spent = seconds(lambda: Interpreter(program).run([a_t, b]))
    (result,) = Interpreter(program).run([a_t, b]).outputs
    error = np.abs(result.astype(np.float32) - a32 @ b32).max() / np.abs(a32 @ b32).max()
    print(f"\n{size}^3 bfloat16 matmul, {len(program):,} instructions (error {error:.1e})")
    print(f"  numpy float32 {alone:.3f} s, {2 * size**3 / alone / 1e9:.0f} GFLOP/s")
    print(f"  executed      {spent:.3f} s, {spent / alone:.2f} x  {check(spent / alone, 3)}")


def peak_resident_bytes() -> int:
    text = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", text)[1]) * 1024  # type: ignore[index]


def resident_bytes() -> int:
    text = Path("/proc/self/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", text)[1]) * 1024  # type: ignore[index]


def compare_memory() -> None:
    """Print the peak memory of executing a matmul against twice its tensors plus live tiles."""
    size = 4096
    program = trace(reloading_matmul, [((2048, size), "bfloat16"), ((2048, size), "bfloat16")])
    validate(program, resolve_machine("trn2"))
    a_t, b = (np.ones((2048, size), ml_dtypes.bfloat16) for _ in range(2))
    np.matmul(np.ones((128, 128), np.float32), np.ones((128, 512), np.float32))
    interpreter = Interpreter(program)
    tensors = a_t.nbytes + b.nbytes + size * size * 2
    tiles = interpreter.plan.peak_bytes - size * size * 2
    gc.collect()
    before = resident_bytes()
    Path("/proc/self/clear_refs").write_text("5")
    result = interpreter.run([a_t, b])
    spent = peak_resident_bytes() - before + a_t.nbytes + b.nbytes
    limit = 2 * tensors + tiles
    mib = 1 << 20
    print(f"\nmemory of executing {len(program):,} instructions ({result.outputs[0].shape} result)")
    print(
        f"  tensors {tensors / mib:.0f} MiB, live tiles and flags {tiles / mib:.1f} MiB, "
        f"peak {spent / mib:.0f} MiB: {spent / limit:.2f} of 2 x tensors + tiles  "
        f"{check(spent / limit, 1)}"
    )


def time_profile() -> None:
    """Print the time for a large profile with its critical path and every what-if."""
    machine = resolve_machine("trn2")
    program = trace(reloading_matmul, [((7168, 4096), "bfloat16"), ((7168, 8192), "bfloat16")])
    spent = []
    start = time.perf_counter()
    profile = profile_program(program, machine)
    spent.append(time.perf_counter() - start)
    found = what_if(profile)
    spent.append(time.perf_counter() - start)
    print(f"\nprofile of {len(program):,} instructions, emulated {profile.latency_ns / 1e6:.2f} ms")
    print(
        f"  profile with critical path {spent[0]:.2f} s, with {len(found)} what-ifs that gain "
        f"(of {len(IDEALS) + 2}) {spent[1]:.2f} s  {check(spent[1], 5)}"
    )


PARTS = ["stages", "matmul", "memory", "profile"]


def blas() -> str:
    """Return which BLAS kernel runs, and on how many threads."""
    libraries = re.findall(r"(/\S*openblas\S*\.so\S*)", Path("/proc/self/maps").read_text())
    if not libraries:
        return "BLAS: not OpenBLAS"
    library = ctypes.CDLL(libraries[0])
    for prefix, suffix in (("scipy_", "64_"), ("scipy_", ""), ("", "64_"), ("", "")):
        try:
            name = getattr(library, f"{prefix}openblas_get_corename{suffix}")
            threads = getattr(library, f"{prefix}openblas_get_num_threads{suffix}")
        except AttributeError:
            continue
        name.restype = ctypes.c_char_p
        return f"OpenBLAS kernel {name().decode()}, {threads()} thread(s)"
    return "OpenBLAS of unknown build"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument(
        "--only", nargs="+", choices=["stages", "matmul", "memory", "profile", "peer"]
    )
    options = parser.parse_args()
    wanted = options.only or ["stages", "matmul", "memory", "profile", "peer"]
    print(f"numpy {np.__version__}, Python {sys.version.split()[0]}; {blas()}")
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    if "stages" in wanted:
        stages(slices, 20.0, options.sizes, is_executed=True)
        stages(index_tensors, 50.0, options.sizes, is_executed=True)
    if "matmul" in wanted:
        compare_matmul()
    if "memory" in wanted:
        compare_memory()
    if "profile" in wanted:
        time_profile()
    return 0


if __name__ == "__main__":
    sys.exit(main())
