"""`@nki.jit` and its relatives: marks kernels, carries the grid, inlines nested calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nkisim.errors import KernelError, UnsupportedError
from nkisim.frontend.context import active

Runner = Callable[["Kernel", tuple[object, ...], dict[str, object]], object]


class Kernel:
    """A jitted kernel.

    Attributes:
        func: The Python function.
        grid: Launch grid given in brackets, empty without.
    """

    def __init__(
        self, func: Callable[..., object], run: Runner | None, grid: tuple[int, ...] = ()
    ) -> None:
        self.func = func
        self.grid = grid
        self._run = run
        self.__name__ = getattr(func, "__name__", "kernel")
        self.__doc__ = func.__doc__
        self.__module__ = func.__module__
        self.__wrapped__ = func

    def __getitem__(self, grid: object) -> Kernel:
        items = grid if isinstance(grid, tuple) else (grid,)
        return Kernel(self.func, self._run, tuple(int(n) for n in items))

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


def make_decorators(run: Runner | None) -> dict[str, object]:
    """Return `jit`, `trace`, `benchmark`, `profile`, `baremetal`, `simulate` for module `nki`."""

    def jit(func: Callable[..., object] | None = None, **_: object) -> Any:
        if func is None:
            return lambda inner: Kernel(_plain(inner), run)
        return Kernel(_plain(func), run)

    def simulate(kernel: object) -> Callable[..., object]:
        return kernel if isinstance(kernel, Kernel) else Kernel(unwrap(kernel), run)

    def simulate_kernel(kernel: object, *args: object, **kwargs: object) -> object:
        return simulate(kernel)(*args, **kwargs)

    def on_hardware(name: str) -> Callable[..., Any]:
        def decorator(func: Callable[..., object] | None = None, **_: object) -> Any:
            def wrap(inner: Callable[..., object]) -> Callable[..., object]:
                def refuse(*args: object, **kwargs: object) -> object:
                    raise UnsupportedError(
                        "NKS503",
                        f"nki.{name} runs on Trainium hardware",
                        hint="use nkisim profile FILE:ENTRY for emulated time",
                    )

                refuse.__name__ = getattr(inner, "__name__", name)
                return refuse

            return wrap if func is None or not callable(func) else wrap(func)

        return decorator

    return {
        "jit": jit,
        "trace": jit,
        "simulate": simulate,
        "simulate_kernel": simulate_kernel,
        "benchmark": on_hardware("benchmark"),
        "profile": on_hardware("profile"),
        "baremetal": on_hardware("baremetal"),
    }


def _plain(func: Callable[..., object]) -> Callable[..., object]:
    return func.func if isinstance(func, Kernel) else func
