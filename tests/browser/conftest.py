"""One Chromium for the tests of a file, pages that were made once, and screenshots that are kept.

Screenshots go to the folder that FRONTIER_SCREENSHOTS names, or to `.screenshots`.
"""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from opened import PATIENCE_MS, Open, Opened
from playwright.sync_api import Browser, Request, sync_playwright

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests/unit"))

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# The sandbox needs rights that a container seldom has, and the pages are our own; a container's
# shared memory and what stands for a graphics card are too small for pictures of a long page.
FLAGS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
SCREENSHOTS = Path(os.environ.get("FRONTIER_SCREENSHOTS") or ROOT / ".screenshots")


# Not for the whole session: as long as it is there, the thread has a running event loop, and
# nothing else that is tested in this process may start one.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, NAMES)), None)
    assert program is not None, f"no browser on PATH: one of {', '.join(NAMES)} is needed"
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield launched
        launched.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Opens a file without a network; in the end nothing may have been complained of."""
    opened: list[Opened] = []

    def open_file(
        file: Path, width: int = 1280, height: int = 900, scheme: str = "light", **more: object
    ) -> Opened:
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, offline=True, **more
        )
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        seen = Opened(page)
        opened.append(seen)
        page.on("console", lambda message: seen.complaints.append(message.text))
        page.on("pageerror", lambda error: seen.complaints.append(str(error)))
        page.on("dialog", lambda dialog: seen.complaints.append(dialog.message))

        def note(request: Request) -> None:
            seen.requests.append(request.url)

        page.on("request", note)
        page.goto(file.as_uri())
        return seen

    yield open_file
    for each in opened:
        url = each.page.url.partition("#")[0]
        each.page.context.close()
        assert each.complaints == []
        assert [one for one in each.requests if one != url and not one.startswith("data:")] == []


@pytest.fixture(scope="session")
def screenshots() -> Path:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    return SCREENSHOTS
