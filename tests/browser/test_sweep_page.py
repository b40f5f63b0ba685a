"""The page of a report in a real browser: what is on it, and whether everybody can use it."""

import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import golden_sweeps as golden
import pytest
from axe_playwright_python.sync_playwright import Axe
from opened import PATIENCE_MS, Open, keep
from playwright.sync_api import Page, expect

from vllm_frontier.report.pages import sweep_report
from vllm_frontier.store.paths import ReportPaths

WIDTHS = (360, 768, 1280, 1920)
HEIGHT = 900
MARKS = "[data-mark]"


def made(folder: Path) -> Path:
    paths, report = ReportPaths(folder), sweep_report.make(folder, folder)
    paths.html.write_text(report.html())
    paths.markdown.write_text(report.markdown())
    return paths.html


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The page of every golden sweep, by name."""
    root = tmp_path_factory.mktemp("golden")
    found = {name: made(folder) for name, folder in golden.all_of(root).items()}
    found["large"] = made(golden.shared_large())
    with golden.running(root / "running") as folder:
        found["running"] = made(folder)
    return found


@pytest.mark.parametrize("name", [*golden.FINISHED, "large", "running"])
def test_every_kind_of_sweep_opens(
    name: str, pages: dict[str, Path], open_page: Open, screenshots: Path
) -> None:
    page = open_page(pages[name], width=360).page
    assert page.locator("h1").count() == 1
    assert "vllm-frontier" in page.title()
    assert page.locator("figure svg").count() >= 1
    assert overflow(page) == []
    keep(page, screenshots / f"{name}-360.png", whole=False)
    told = pages[name].with_name("report.md").read_text()
    simulated = " (simulated)" if page.get_by_text("Simulated", exact=True).count() else ""
    assert simulated == (" (simulated)" if name == "simulated" else "")
    assert told.startswith(f"# {page.locator('h1').inner_text()}{simulated}\n")
    assert f"**{page.locator('.badge').first.inner_text()}.**" in told


@pytest.mark.parametrize("name", ["simulated", "every_outcome"])
def test_nothing_is_wider_than_the_screen(
    name: str, pages: dict[str, Path], open_page: Open, screenshots: Path
) -> None:
    page = open_page(pages[name], width=WIDTHS[0]).page
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": HEIGHT})
        if name == "simulated" or width == WIDTHS[1]:  # the other one is very long
            keep(page, screenshots / f"{name}-{width}-light.png")
        unfold(page)
        assert overflow(page) == []
        page.reload()
    if name == "simulated":
        page.emulate_media(color_scheme="dark")
        keep(page, screenshots / f"{name}-{WIDTHS[-1]}-dark.png")


@pytest.mark.parametrize(("width", "rows"), [(768, [2, 2, 2, 2]), (1920, [4, 4])])
def test_panels_with_and_without_graphs_stand_above_each_other(
    width: int, rows: list[int], pages: dict[str, Path], open_page: Open
) -> None:
    page = open_page(pages["large"], width=width).page
    tops = page.locator("#fits .panel").evaluate_all(
        "all => all.map(each => Math.round(each.getBoundingClientRect().top))"
    )
    assert [tops.count(top) for top in sorted(set(tops))] == rows


def unfold(page: Page) -> None:
    page.locator("details").evaluate_all("all => all.forEach(each => { each.open = true })")


def overflow(page: Page) -> list[str]:
    """What sticks out at the right, but for what scrolls by itself."""
    found: list[str] = page.evaluate(
        """() => {
          const room = document.documentElement.clientWidth;
          if (document.documentElement.scrollWidth <= room) return [];
          return [...document.querySelectorAll("body *")]
            .filter((each) => each.getBoundingClientRect().right > room + 1)
            .filter((each) => !each.closest(".scroll, pre"))
            .map((each) => each.outerHTML.slice(0, 200));
        }"""
    )
    return found


CONTRAST = {"runOnly": ["color-contrast"], "resultTypes": ["violations"]}
WHOLE = {"resultTypes": ["violations"]}


@pytest.mark.parametrize(
    ("name", "scheme", "options"),
    [
        ("every_outcome", "light", WHOLE),
        ("simulated", "dark", WHOLE),
        ("every_outcome", "dark", CONTRAST),
        ("simulated", "light", CONTRAST),
    ],
)
def test_the_page_is_accessible(
    name: str, scheme: str, options: dict[str, Any], pages: dict[str, Path], open_page: Open
) -> None:
    page = open_page(pages[name], scheme=scheme).page
    unfold(page)
    results = Axe().run(page, options=options)
    told = [
        f"{each['id']}: {each['help']}: {[node['html'][:200] for node in each['nodes'][:3]]}"
        for each in results.response["violations"]
    ]
    assert told == []


def test_headings_come_in_order(pages: dict[str, Path], open_page: Open) -> None:
    page = open_page(pages["every_outcome"]).page
    levels = [
        int(level)
        for level in page.locator("h1, h2, h3, h4").evaluate_all(
            "all => all.map(each => each.tagName[1])"
        )
    ]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert page.locator("html").get_attribute("lang") == "en"
    for landmark in ("banner", "navigation", "main", "contentinfo"):
        assert page.get_by_role(landmark).count() == 1  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("inferred", "Finished"),
        ("interrupted", "Interrupted"),
        ("out_of_budget", "Stopped by its budget"),
        ("running", "Running"),
    ],
)
def test_the_page_says_how_far_the_sweep_is(
    name: str, state: str, pages: dict[str, Path], open_page: Open
) -> None:
    page = open_page(pages[name]).page
    assert page.locator("header .badge").inner_text() == state
    works, inferred = page.locator("#answer .legend li").all_inner_texts()[:2]
    assert works.endswith("work")
    assert inferred.endswith("work, inferred")


def test_hostile_text_stays_text(pages: dict[str, Path], open_page: Open) -> None:
    page = open_page(pages["every_outcome"]).page
    assert page.locator("img").count() == 0
    assert page.locator("body script").count() == 1
    text = page.locator("#failures").inner_text()
    assert golden.HOSTILE in text
    assert "49" not in re.findall(r"\{\{ 7\*7 \}\}|\b49\b", text)


def test_marks_tell_what_is_known_of_a_cell(pages: dict[str, Path], open_page: Open) -> None:
    page = open_page(pages["several_cards"]).page
    told = labels(page, "#fits")
    cells = [each for each in told if re.match(r"[\d,]+ tokens, depth", each)]
    assert len(cells) == len(set(cells)) == 8
    # The described card: 0.97 of 31.36 GiB without weights, head, activation and graphs.
    there = "100,000 tokens, depth 3, graphs on, utilization 0.97: works"
    assert sum(each.startswith(there) and "5.70 GiB" in each for each in cells) == 1
    ends = [each for each in told if each.startswith("Boundary")]
    assert len(ends) == 2
    assert all("depth 3 works up to 100,000" in each for each in ends)


def test_a_refusal_names_its_reason_and_what_was_needed(
    pages: dict[str, Path], open_page: Open
) -> None:
    page = open_page(pages["nothing_works"]).page
    told = [each for each in labels(page, "#fits") if re.match(r"[\d,]+ tokens, depth", each)]
    assert len(told) == 96
    assert all("works" not in each.partition(":")[2] for each in told)
    assert page.locator("#choices").count() == 0
    answer = page.locator(".answer").inner_text()
    assert answer.startswith("Nothing in the grid fits: no memory left for the KV cache (kv_none")
    assert "What would help: " in answer


def test_the_frontier_has_its_cells(pages: dict[str, Path], open_page: Open) -> None:
    page = open_page(pages["several_cards"]).page
    rows = page.locator("#frontier-table tbody tr")
    assert rows.count() == 1
    told = rows.first.locator("th, td").all_inner_texts()[:6]
    assert told == ["100,000", "168.3", "165.6 to 171.1*", "3", "on", "0.97"]
    assert "168.3 tokens/s" in page.locator(".answer").inner_text()
    assert sum("beaten" in each for each in labels(page, "#frontier")) == 7


def labels(page: Page, where: str) -> list[str]:
    """What the marks of a picture say."""
    found: list[str] = page.locator(f"{where} {MARKS}").evaluate_all(
        "all => all.map(each => each.getAttribute('aria-label'))"
    )
    return found


def test_a_picture_is_walked_by_keyboard(pages: dict[str, Path], open_page: Open) -> None:
    page = open_page(pages["simulated"]).page
    first = page.locator(f"#fits .panel >> nth=0 >> {MARKS}").first
    first.focus()
    label = focused(page)
    tooltip = page.get_by_role("tooltip")
    assert tooltip.inner_text().split() == label.split()
    page.keyboard.press("ArrowRight")
    assert focused(page) != label
    assert tooltip.inner_text().split() == focused(page).split()
    page.keyboard.press("ArrowLeft")
    assert focused(page) == label
    page.keyboard.press("End")
    last = focused(page)
    page.keyboard.press("PageUp")
    page.keyboard.press("PageDown")
    assert focused(page) == last
    page.keyboard.press("Escape")
    expect(tooltip).to_be_hidden(timeout=PATIENCE_MS)
    page.keyboard.press("Tab")
    # The panel that is left is not entered again.
    assert page.evaluate(
        "document.activeElement.closest('.panel') !== document.querySelector('.panel')"
    )


def focused(page: Page) -> str:
    return str(page.evaluate("document.activeElement.getAttribute('aria-label') ?? ''"))


def test_a_mark_that_is_pointed_at_tells_itself(pages: dict[str, Path], open_page: Open) -> None:
    page = open_page(pages["simulated"]).page
    mark = page.locator(f"#fits {MARKS}").nth(3)
    mark.hover()
    tooltip = page.get_by_role("tooltip")
    expect(tooltip).to_be_visible(timeout=PATIENCE_MS)
    assert tooltip.inner_text().split() == str(mark.get_attribute("aria-label")).split()
    page.mouse.move(1, 1)
    expect(tooltip).to_be_hidden(timeout=PATIENCE_MS)


def test_tab_comes_to_everything_in_reading_order(pages: dict[str, Path], open_page: Open) -> None:
    page = open_page(pages["every_outcome"]).page
    tops: list[float] = []
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"
    kinds = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        where: dict[str, Any] = page.evaluate(
            """() => {
              const each = document.activeElement;
              const shown = getComputedStyle(each);
              return {
                kind: each.matches("[data-mark]") ? "mark" : each.tagName,
                top: each.closest("nav, main > section").getBoundingClientRect().top + scrollY,
                outline: shown.outlineStyle !== "none" && parseFloat(shown.outlineWidth) >= 2,
              };
            }"""
        )
        if where["kind"] == "BODY":
            break
        assert where["outline"], where
        kinds.add(where["kind"])
        tops.append(where["top"])
    assert tops == sorted(tops)
    assert {"mark", "BUTTON", "SUMMARY", "DIV", "A"} <= kinds


def test_a_command_is_copied(pages: dict[str, Path], open_page: Open) -> None:
    page = open_page(pages["simulated"], permissions=["clipboard-read", "clipboard-write"]).page
    button = page.get_by_role("button", name="Copy").first
    page.clock.install()
    page.clock.pause_at(datetime.now(UTC) + timedelta(hours=1))  # so that it says so until asked
    button.click()
    expect(page.get_by_role("button", name="Copied")).to_have_count(1, timeout=PATIENCE_MS)
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == page.locator(".card pre code").first.inner_text()
    assert "--max-model-len" in copied
    page.clock.run_for(2500)
    expect(page.get_by_role("button", name="Copied")).to_have_count(0, timeout=PATIENCE_MS)


def test_without_script_all_is_there(pages: dict[str, Path], open_page: Open) -> None:
    page = open_page(pages["simulated"], java_script_enabled=False).page
    assert page.locator("figure svg").count() >= 2
    assert page.locator(".card pre code").first.is_visible()
    assert not page.get_by_role("button").first.is_visible()
    assert not page.locator("#tooltip").is_visible()


def test_the_page_prints(pages: dict[str, Path], open_page: Open, screenshots: Path) -> None:
    page = open_page(pages["simulated"], scheme="dark").page
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator(".way").is_visible()
    assert page.locator("figure svg").first.is_visible()
    content = page.pdf(path=screenshots / "simulated.pdf", format="A4")
    assert content.startswith(b"%PDF")
    assert len(content) > 50_000


PAPER = 688  # pixels between the margins of A4


def test_what_is_folded_prints(pages: dict[str, Path], open_page: Open) -> None:
    page = open_page(pages["large"], width=PAPER).page
    folded = "#boundaries details > .scroll >> nth=0 >> tbody tr"
    assert page.locator(folded).count() > 40
    assert not page.locator(folded).last.is_visible()
    page.emulate_media(media="print")
    assert page.locator(folded).last.is_visible()
    every = page.locator("#boundaries .every")
    assert not every.is_visible()
    every.evaluate("each => { each.open = true }")
    assert every.locator("tbody tr").last.is_visible()
    hidden = page.locator("details").evaluate_all(
        """all => all.flatMap((each) => [...each.querySelectorAll("pre, tr, li, p")])
          .filter((each) => !each.checkVisibility()).map((each) => each.outerHTML.slice(0, 200))"""
    )
    assert hidden == []
    assert overflow(page) == []


def test_a_heading_on_paper_stays_with_what_follows(
    pages: dict[str, Path], open_page: Open
) -> None:
    page = open_page(pages["every_outcome"], width=PAPER).page
    page.emulate_media(media="print")
    # A grid would let the heading before it stay behind.
    assert page.evaluate("getComputedStyle(document.querySelector('#failures .list')).display") == (
        "block"
    )
    kept = page.locator("h2, h3, .question, summary, figcaption").evaluate_all(
        "all => [...new Set(all.map(each => getComputedStyle(each).breakAfter))]"
    )
    assert kept == ["avoid"]


@pytest.mark.parametrize("width", [1280, 1600])
def test_the_frontier_is_as_wide_as_there_is_room(
    width: int, pages: dict[str, Path], open_page: Open
) -> None:
    page = open_page(pages["every_outcome"], width=width).page
    drawn = page.locator("#frontier .panel svg").bounding_box()
    assert drawn is not None
    assert 480 <= drawn["width"] <= 610


def test_axes_tell_no_pixels(pages: dict[str, Path], open_page: Open) -> None:
    page = open_page(pages["every_outcome"]).page
    axes = page.locator("#frontier .role-axis")
    assert axes.count() >= 2
    assert set(axes.evaluate_all("all => all.map(each => each.ariaHidden)")) == {"true"}
    assert not re.search(r'aria-label="[XY]-axis|scale with values', page.content())
