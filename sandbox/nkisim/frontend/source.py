"""From Python frames to places in the kernel's source."""

from __future__ import annotations

import linecache
import re
import sys
from pathlib import Path
from types import CodeType, FrameType, TracebackType

from nkisim.errors import Place

OWN_FOLDER = str(Path(__file__).resolve().parent.parent)
MAX_CALLERS = 4
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(?:\s*:[^=]+)?\s*=(?!=)")
"""A line that gives a plain variable its value."""


class SourceMap:
    """Finds the kernel's line behind a call and interns it.

    Args:
        sources: Text by file name, for files that cannot be read from disk any more.
    """

    def __init__(self, sources: dict[str, str] | None = None) -> None:
        self._lines = {name: text.splitlines() for name, text in (sources or {}).items()}
        self._is_own: dict[CodeType, bool] = {}
        self._sites: dict[tuple[object, ...], int] = {}
        self._variables: dict[int, str] = {}
        self.places: list[tuple[Place, tuple[Place, ...]]] = []

    def line(self, file: str, number: int) -> str:
        """Return one source line, stripped; empty if the file is not known."""
        lines = self._lines.get(file)
        if lines is not None:
            return lines[number - 1].strip() if 0 < number <= len(lines) else ""
        return linecache.getline(file, number).strip()

    def place(self, file: str, number: int) -> Place:
        """Return the place for a line of `file`."""
        shown = file if file in self._lines else Path(file).name
        return Place(file=shown, line=number, text=self.line(file, number)[:200])

    def _own(self, code: CodeType) -> bool:
        found = self._is_own.get(code)
        if found is None:
            found = code.co_filename.startswith((OWN_FOLDER, "<frozen", "<string>"))
            self._is_own[code] = found
        return found

    def site(self, frame: FrameType | None) -> int:
        """Return the number of the site that `frame` was called from."""
        while frame is not None and self._own(frame.f_code):
            frame = frame.f_back
        if frame is None:
            return self._intern((None,), None)
        back = frame.f_back
        if back is None or self._own(back.f_code):
            key: tuple[object, ...] = (frame.f_code, frame.f_lasti)
        else:
            key = (frame.f_code, frame.f_lasti, back.f_code, back.f_lasti)
        found = self._sites.get(key)
        return self._intern(key, frame) if found is None else found

    def variable(self, site: int) -> str:
        """Return the name of the variable that the line of a site assigns; empty if none."""
        found = self._variables.get(site)
        if found is None:
            match = _ASSIGNED.match(self.places[site][0].text)
            found = self._variables[site] = match[1] if match else ""
        return found

    def site_of_call(self) -> int:
        """Return the number of the kernel's line that called into nkisim."""
        return self.site(sys._getframe(1))

    def _intern(self, key: tuple[object, ...], frame: FrameType | None) -> int:
        if key in self._sites:
            return self._sites[key]
        if frame is None:
            place = Place(file="<call>", line=0)
            callers: tuple[Place, ...] = ()
        else:
            place = self.place(frame.f_code.co_filename, frame.f_lineno)
            callers = self._callers(frame)
        entry = (place, callers)
        if entry in self.places:
            number = self.places.index(entry)
        else:
            number = len(self.places)
            self.places.append(entry)
        self._sites[key] = number
        return number

    def _callers(self, frame: FrameType) -> tuple[Place, ...]:
        callers: list[Place] = []
        outer = frame.f_back
        while outer is not None and not self._own(outer.f_code) and len(callers) < MAX_CALLERS:
            callers.append(self.place(outer.f_code.co_filename, outer.f_lineno))
            outer = outer.f_back
        return tuple(callers)

    def of_traceback(
        self, traceback: TracebackType | None
    ) -> tuple[Place | None, tuple[Place, ...]]:
        """Return the innermost kernel line of a traceback, and its callers outwards."""
        chain: list[Place] = []
        while traceback is not None:
            code = traceback.tb_frame.f_code
            if not self._own(code):
                chain.append(self.place(code.co_filename, traceback.tb_lineno))
            traceback = traceback.tb_next
        if not chain:
            return None, ()
        chain.reverse()
        return chain[0], tuple(chain[1 : 1 + MAX_CALLERS])
