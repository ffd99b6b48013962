"""Collects the text of a kernel file and of the modules that it imports from its own folders.

The sandboxed child can open nothing, so everything that a kernel may import travels as text.  Only
what the import statements reach is taken.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nkisim.errors import NkisimError

MAX_BYTES = 16 << 20
MAX_MODULES = 2000


@dataclass(frozen=True, slots=True)
class Bundle:
    """Sources by module name, in the form that a trace request takes."""

    sources: dict[str, dict[str, object]]
    main: str


class SourceNotFound(NkisimError):
    """A kernel file cannot be read."""


def collect(path: str | Path, search_path: Sequence[str | Path] = ()) -> Bundle:
    """Return the kernel file and the modules that it imports from its folder or `search_path`.

    Args:
        path: The kernel file.
        search_path: Folders that it may import from; a file inside one of them is imported under
            its dotted name, so that relative imports work.
    """
    file = Path(path).resolve()
    if not file.is_file():
        raise SourceNotFound(f"kernel file {str(path)!r} does not exist")
    roots = [Path(folder).resolve() for folder in search_path]
    main = file.stem
    for root in roots:
        if root in file.parents:
            main = ".".join(file.relative_to(root).with_suffix("").parts)
            break
    collector = _Collector([*roots, file.parent])
    collector.add(main, file)
    collector.add_parents(main)
    collector.follow()
    return Bundle(collector.sources, main)


def from_text(text: str, *, file: str = "kernel.py") -> Bundle:
    """Return a bundle of one module."""
    name = Path(file).stem
    return Bundle({name: {"file": file, "text": text, "is_package": False}}, name)


class _Collector:
    def __init__(self, roots: list[Path]) -> None:
        self.roots = roots
        self.sources: dict[str, dict[str, object]] = {}
        self._pending: list[str] = []
        self._bytes = 0

    def add(self, name: str, file: Path) -> None:
        if name in self.sources:
            return
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SourceNotFound(f"cannot read {file.name}: {error}") from None
        self._bytes += len(text)
        if self._bytes > MAX_BYTES or len(self.sources) >= MAX_MODULES:
            raise SourceNotFound(
                f"the imports of the kernel file reach more than {MAX_BYTES >> 20} MiB or "
                f"{MAX_MODULES} modules; narrow search_path"
            )
        shown = file.name if file.name != "__init__.py" else f"{file.parent.name}/__init__.py"
        taken = {str(source["file"]) for source in self.sources.values()}
        if shown in taken:
            shown = f"{file.parent.name}/{shown}"
        while shown in taken:
            shown = f"_{shown}"
        self.sources[name] = {
            "file": shown,
            "text": text,
            "is_package": file.name == "__init__.py",
        }
        self._pending.append(name)

    def add_parents(self, name: str) -> None:
        while "." in name:
            name = name.rpartition(".")[0]
            self._find(name)

    def _find(self, name: str) -> bool:
        if name in self.sources:
            return True
        parts = name.split(".")
        for root in self.roots:
            base = root.joinpath(*parts)
            for file in (base.with_suffix(".py"), base / "__init__.py"):
                if file.is_file():
                    self.add(name, file)
                    self.add_parents(name)
                    return True
        return False

    def follow(self) -> None:
        while self._pending:
            name = self._pending.pop()
            source = self.sources[name]
            for wanted in _imports(str(source["text"]), name, bool(source["is_package"])):
                self._find(wanted)


def _imports(text: str, name: str, is_package: bool) -> Iterator[str]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    package = name if is_package else name.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")
                parts = parts[: len(parts) - node.level + 1]
                base = ".".join([*parts, *([node.module] if node.module else [])])
            if base:
                yield base
                yield from (f"{base}.{alias.name}" for alias in node.names if alias.name != "*")
