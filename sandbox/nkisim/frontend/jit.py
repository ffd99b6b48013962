"""`@nki.jit` and its relatives: marks kernels, carries the grid, inlines nested calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nkisim.errors import KernelError
from nkisim.frontend.context import active

Runner = Callable[["Kernel", tuple[object, ...], dict[str, object]], object]


@dataclass(slots=True)
class Measured:
    """Emulated time of a kernel's last launch."""

    latency_ns: float | None = None


@dataclass(frozen=True, slots=True)
class EmulatedLatency:
    """Latency on the emulated device, the same for every percentile."""

    latency_ns: float

    def get_latency_percentile(self, percentile: int) -> float:
        """Return the emulated latency in microseconds; one launch has no spread."""
        if not 0 <= percentile <= 100:
            raise KernelError("NKS305", f"a percentile is 0 to 100, got {percentile!r}")
        return self.latency_ns / 1000.0

    def __repr__(self) -> str:
        return f"<{self.latency_ns:,.0f} ns, emulated>"


@dataclass(frozen=True, slots=True)
class BenchmarkResult:
    """What `nki.benchmark` leaves on a kernel; emulated, not measured."""

    nc_latency: EmulatedLatency


class Kernel:
    """A jitted kernel.

    Attributes:
        func: The Python function.
        grid: Launch grid given in brackets, empty without.
        is_beta1: Whether `neuronxcc.nki` decorated it.
        measured: Emulated time of its last launch, shared by all grids of the kernel.
    """

    def __init__(
        self,
        func: Callable[..., object],
        run: Runner | None,
        grid: tuple[int, ...] = (),
        *,
        is_beta1: bool = False,
        measured: Measured | None = None,
    ) -> None:
        self.func = func
        self.grid = grid
        self.is_beta1 = is_beta1
        self.measured = measured or Measured()
        self._run = run
        self.__name__ = getattr(func, "__name__", "kernel")
        self.__doc__ = func.__doc__
        self.__module__ = func.__module__
        self.__wrapped__ = func

    def __getitem__(self, grid: object) -> Kernel:
        items = grid if isinstance(grid, tuple) else (grid,)
        return Kernel(
            self.func,
            self._run,
            tuple(int(n) for n in items),
            is_beta1=self.is_beta1,
            measured=self.measured,
        )

    @property
    def benchmark_result(self) -> BenchmarkResult:
        """Emulated latency of the last launch (`nki.benchmark`)."""
        if self.measured.latency_ns is None:
            raise KernelError(
                "NKS606",
                f"kernel {self.__name__!r} has no benchmark result before it is launched",
                hint="call it on arrays first",
            )
        return BenchmarkResult(EmulatedLatency(self.measured.latency_ns))

    def __call__(self, *args: object, **kwargs: object) -> object:
        if active() is not None:
            return self.func(*args, **kwargs)
        if self._run is None:
            raise KernelError(
                "NKS606",
                f"kernel {self.__name__!r} was launched while its module was loading",
                hint="keep launches under `if __name__ == '__main__':`",
            )
        return self._run(self, args, kwargs)

    def with_schedule(self, edges: object) -> Kernel:
        """Accept ordering edges; program order keeps them already."""
        return self

    def __repr__(self) -> str:
        return f"<nki kernel {self.__name__}>"


def unwrap(entry: object) -> Callable[..., object]:
    """Return the plain function behind a kernel or a function."""
    if isinstance(entry, Kernel):
        return entry.func
    if callable(entry):
        return entry
    raise KernelError("NKS608", f"the entry is not a function but {type(entry).__name__}")


def make_decorators(run: Runner | None, *, is_beta1: bool = False) -> dict[str, object]:
    """Return `jit`, `trace`, `benchmark`, `profile`, `baremetal`, `simulate` for module `nki`.

    All of them mark a kernel.  What they would do on hardware (compile, measure, save files) is
    replaced by emulation; options are accepted and have no effect.
    """

    def mark(func: Callable[..., object]) -> Kernel:
        measured = func.measured if isinstance(func, Kernel) else None
        grid = func.grid if isinstance(func, Kernel) else ()
        is_old = is_beta1 or (isinstance(func, Kernel) and func.is_beta1)
        return Kernel(unwrap(func), run, grid, is_beta1=is_old, measured=measured)

    def jit(func: Callable[..., object] | None = None, **_: object) -> Any:
        return mark if func is None else mark(func)

    def simulate(kernel: object) -> Callable[..., object]:
        return kernel if isinstance(kernel, Kernel) else mark(unwrap(kernel))

    def simulate_kernel(kernel: object, *args: object, **kwargs: object) -> object:
        return simulate(kernel)(*args, **kwargs)

    names = ("jit", "trace", "benchmark", "profile", "baremetal")
    return {
        **dict.fromkeys(names, jit),
        "simulate": simulate,
        "cpu_simulate": simulate,
        "simulate_kernel": simulate_kernel,
    }
