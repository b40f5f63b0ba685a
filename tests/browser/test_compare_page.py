"""The page of sweeps side by side, as a browser shows it."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from compared_sweeps import sweep
from opened import Open, keep

from vllm_frontier.report.comparison import page
from vllm_frontier.report.comparison.document import compare

WIDTHS = (360, 768, 1280, 1920)


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("sweeps")
    more = {"speed": 110.0, "available": 1.5}
    return compare(
        [
            sweep(root / "one", "model.quantization=nvfp4"),
            sweep(root / "two", "model.quantization=awq", **more),
        ]
    )


@pytest.fixture(scope="module")
def file(document: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "compare.html"
    page.write(document, html=path)
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_is_as_wide_as_the_window(
    width: int, scheme: str, file: Path, open_page: Open, screenshots: Path
) -> None:
    opened = open_page(file, width, scheme=scheme).page
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    keep(opened, screenshots / f"compare-{scheme}-{width}.png")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everybody_can_read_it(scheme: str, file: Path, open_page: Open) -> None:
    opened = open_page(file, scheme=scheme).page
    opened.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    found = Axe().run(opened)
    assert found.violations_count == 0, found.generate_report()


def test_marks_stand_where_the_figures_are(
    file: Path, document: dict[str, Any], open_page: Open
) -> None:
    opened = open_page(file).page
    figure = opened.locator("#windows")
    marks = figure.locator(".panel [data-mark]")
    told = [mark.get_attribute("aria-label") or "" for mark in marks.all()]
    ends = [side for row in document["windows"] for side in (row["base"], row["other"])]
    assert len(told) == len(ends) == 8
    longest = {
        re.sub(r"[^0-9]", "", text.partition("works up to ")[2].split(", ")[0]) for text in told
    }
    assert {int(text) for text in longest} == {side["max_context_works"] for side in ends}
    # The longer window stands further to the right.
    boxes = {
        text.partition(":")[0]: mark.bounding_box()
        for text, mark in zip(told, marks.all(), strict=True)
        if "depth 3, graphs on" in text
    }
    assert boxes["awq"]["x"] < boxes["nvfp4"]["x"]
    speeds = opened.locator("#speed-awq .panel [data-mark]")
    assert speeds.count() == 4
    assert all("faster" in (mark.get_attribute("aria-label") or "") for mark in speeds.all())


def test_one_heading_and_headings_in_order(file: Path, open_page: Open) -> None:
    opened = open_page(file).page
    levels = opened.eval_on_selector_all(
        "h1, h2, h3, h4", "all => all.map(each => Number(each.tagName[1]))"
    )
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert opened.locator("h1").inner_text() == '"awq" against "nvfp4" (simulated)'


def test_on_paper_no_column_is_cut(file: Path, open_page: Open) -> None:
    opened = open_page(file, width=688).page  # between the margins of A4
    opened.emulate_media(media="print")
    found = opened.locator("table").evaluate_all(
        """all => all.map((each) => ({
          columns: each.tHead.rows[0].cells.length,
          over: each.getBoundingClientRect().right - document.documentElement.clientWidth,
        }))"""
    )
    assert max(each["columns"] for each in found) >= 13
    assert [each for each in found if each["over"] > 0] == []
