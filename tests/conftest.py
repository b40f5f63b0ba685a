"""How tests are spread over workers when they run side by side (`pytest -n 2 --dist loadgroup`).

What shares a costly fixture stays together, and at most one test at a time launches real vLLM:
each launch alone keeps every core busy.
"""

from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folder = item.path.relative_to(FOLDER).parts[0]
        if folder == "integration":
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
        elif folder != "unit":
            item.add_marker(pytest.mark.xdist_group(folder))
