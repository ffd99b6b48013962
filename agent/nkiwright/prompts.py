"""The prompts: Markdown with Jinja, in files; no prompt text stands in Python.

A value that a prompt asks for and does not get is an error, never an empty string.
"""

from __future__ import annotations

from pathlib import Path

import jinja2

from nkiwright.errors import PromptError
from nkiwright.resources import data_dir

SUFFIX = ".md.jinja"


class PromptLibrary:
    """Prompts by name.

    Args:
        folder: Folder that holds `NAME.md.jinja` files; default is the program's own.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = data_dir("prompts") if folder is None else folder
        self._environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(self._folder),
            undefined=jinja2.StrictUndefined,
            autoescape=False,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all prompts."""
        return tuple(
            sorted(path.name.removesuffix(SUFFIX) for path in self._folder.glob(f"*{SUFFIX}"))
        )

    def render(self, name: str, **values: object) -> str:
        """Return a prompt with its values filled in.

        Args:
            name: Name of the prompt, without its suffix.
            **values: What the prompt asks for.

        Raises:
            PromptError: There is no such prompt, it is not well formed, or a value is missing.
        """
        file = f"{name}{SUFFIX}"
        try:
            return self._environment.get_template(file).render(**values)
        except jinja2.TemplateNotFound as exc:
            raise PromptError(
                f"no prompt {str(exc.name).removesuffix(SUFFIX)!r} in {self._folder}",
                hint=f"there are {', '.join(self.names) or 'none'}",
            ) from exc
        except jinja2.TemplateSyntaxError as exc:
            raise PromptError(
                f"{self._folder / (exc.name or file)}:{exc.lineno}: {exc.message}"
            ) from exc
        except jinja2.UndefinedError as exc:
            line = _template_line(exc)
            place = f"{self._folder / file}:{line}" if line else str(self._folder / file)
            raise PromptError(f"{place}: {exc.message}") from exc


def _template_line(error: BaseException) -> int | None:
    """Return the line of the template in which an error arose; jinja2 rewrites the traceback."""
    found, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.endswith(SUFFIX):
            found = trace.tb_lineno
        trace = trace.tb_next
    return found
