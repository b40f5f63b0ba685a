"""Where a page lies, and how it names other files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote


@dataclass(frozen=True, slots=True)
class Folder:
    """The folder of a page, and of the sweep that it tells of; both absolute."""

    page: Path
    sweep: Path

    def link(self, path: Path) -> str:
        """A file as the page names it: relative, so that both can be moved together."""
        return quote(os.path.relpath(path, self.page))
