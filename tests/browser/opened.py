"""A page in the browser, as the fixture `open_page` gives it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from playwright.sync_api import Error, Page

# A browser on a busy machine may need long for what it else does within moments.
PATIENCE_MS = 120_000


@dataclass
class Opened:
    """A page in the browser, and whatever it did that it should not do."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


Open: TypeAlias = Callable[..., Opened]
"""Opens a file: path, width, height, scheme, and what `Browser.new_context` takes."""


def keep(page: Page, file: Path, *, whole: bool = True) -> None:
    """Keep a picture of the whole page, or of its top where a busy browser gives up on that."""
    try:
        page.screenshot(path=file, full_page=whole, timeout=30_000)
    except Error:
        page.screenshot(path=file)
