"""Serves a kernel's imports from memory: NKI, the kernel's own modules, host-only stand-ins.

Inside the sandbox nothing can be opened, so every module that a kernel may import is either loaded
before confinement, or text in the request, or an inert stand-in for a host-only library.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from nkisim.errors import Diagnostic, UnsupportedError, Warnings
from nkisim.frontend import mask_syntax

HOST_ONLY = frozenset(
    [
        "torch",
        "torch_xla",
        "torch_neuronx",
        "torchvision",
        "jax",
        "jaxlib",
        "jax_neuronx",
        "flax",
        "scipy",
        "matplotlib",
        "pandas",
        "pytest",
        "tqdm",
        "triton",
        "triton_viz",
        "neuronx_distributed",
        "transformers",
        "tensorflow",
        "nki_samples",
        "einops",
        "libneuronxla",
        "ml_collections",
        "neuron_explorer",
        "neuronxcc",
    ]
)
"""Libraries that kernel files import for their host code; absent, they become stand-ins."""


@dataclass(frozen=True, slots=True)
class ModuleSource:
    """Text of a module that the kernel may import."""

    file: str
    """Name shown in messages."""
    text: str
    is_package: bool = False


class StandIn:
    """Accepts anything and does nothing; stands for an object of a missing host-only module."""

    def __init__(self, name: str) -> None:
        self.__dict__["_name"] = name

    def __getattr__(self, name: str) -> StandIn:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return StandIn(f"{self._name}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and callable(args[0]) and not isinstance(args[0], StandIn):
            return args[0]  # used as a decorator
        return StandIn(f"{self._name}()")

    def __getitem__(self, key: object) -> StandIn:
        return StandIn(f"{self._name}[]")

    def __or__(self, other: object) -> StandIn:
        return self

    __ror__ = __or__

    def __iter__(self) -> Iterator[object]:
        return iter(())

    def __mro_entries__(self, bases: object) -> tuple[type, ...]:
        return ()

    def __repr__(self) -> str:
        return f"<stand-in for {self._name}>"


class StandInModule(ModuleType):
    """A host-only module that is not there."""

    def __getattr__(self, name: str) -> StandIn:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return StandIn(f"{self.__name__}.{name}")


class KernelImporter(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of one request.

    Args:
        sources: Modules by dotted name.
        globals_: Names put into every served module before it runs.
        stand_ins: Whether host-only modules are replaced.
        warnings: Where stand-ins are noted.
    """

    def __init__(
        self,
        sources: Mapping[str, ModuleSource],
        *,
        globals_: Mapping[str, object] | None = None,
        stand_ins: bool = True,
        warnings: Warnings | None = None,
    ) -> None:
        self.sources = sources
        self.globals = dict(globals_ or {})
        self.stand_ins = stand_ins
        self.warnings = warnings or Warnings()
        self._packages = {name.rpartition(".")[0] for name in sources if "." in name}
        for name in list(self._packages):
            while "." in name:
                name = name.rpartition(".")[0]
                self._packages.add(name)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return a spec for a served name, or None."""
        top = name.partition(".")[0]
        if name in self.sources or name in self._packages:
            is_package = name in self._packages or (
                name in self.sources and self.sources[name].is_package
            )
            return importlib.machinery.ModuleSpec(name, self, is_package=is_package)
        if name.startswith("neuronxcc.nki"):
            raise UnsupportedError(
                "NKS504",
                f"module {name} of the first generation of NKI is not emulated",
                hint="neuronxcc.nki, .language, .isa, .typing and .compiler are",
            )
        if self.stand_ins and top in HOST_ONLY:
            if name == top:
                self.warnings.add(
                    Diagnostic(
                        code="NKS590",
                        kind="note",
                        message=f"host-only module {name!r} is replaced by an inert stand-in",
                    )
                )
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """Create a stand-in for host-only modules, the default module otherwise."""
        if spec.name in self.sources or spec.name in self._packages:
            return None
        return StandInModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's text."""
        name = module.__name__
        source = self.sources.get(name)
        if source is None:
            return
        module.__dict__.setdefault("__file__", source.file)
        for key, value in self.globals.items():
            module.__dict__.setdefault(key, value)
        try:
            module.__dict__[mask_syntax.HELPER] = mask_syntax.Logic
            tree = mask_syntax.rewrite(source.text, source.file)
            code = compile(tree, source.file, "exec", dont_inherit=True)
            exec(code, module.__dict__)
        except Exception as error:
            if source.is_package and not isinstance(error, SyntaxError):
                self.warnings.add(
                    Diagnostic(
                        code="NKS591",
                        kind="note",
                        message=f"package {name!r} failed while loading and is used without its "
                        f"own names: {type(error).__name__}: {error}"[:300],
                    )
                )
                return
            raise


@contextmanager
def served(importer: KernelImporter, modules: Mapping[str, ModuleType]) -> Iterator[None]:
    """Put `modules` and the importer in front of Python's own, and undo it at the end."""
    names = set(importer.sources) | importer._packages
    before = dict(sys.modules)
    for name in names:
        sys.modules.pop(name, None)
    if importer.stand_ins:
        # A library that is installed keeps its place: only missing ones are replaced.
        pass
    sys.modules.update(modules)
    sys.meta_path.insert(0, importer)
    try:
        yield
    finally:
        sys.meta_path.remove(importer)
        for name, module in list(sys.modules.items()):
            if before.get(name) is not module and (
                name in names or name in modules or isinstance(module, StandInModule)
            ):
                if name in before:
                    sys.modules[name] = before[name]
                else:
                    del sys.modules[name]
