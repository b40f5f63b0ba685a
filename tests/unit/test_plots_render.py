import re
from xml.etree import ElementTree

import altair as alt
import polars as pl
import pytest

from vllm_frontier.report.plots import render, theme, vega, words
from vllm_frontier.report.plots.figure import Figure
from vllm_frontier.report.wording import listed


def figure(panels: int = 1, **more: object) -> Figure:
    data = pl.DataFrame({"x": [0.123456789], "y": [2.0], "told": ["1.23456789 <b>GiB</b> & more"]})
    chart = (
        alt.Chart(data, width=theme.PANEL_WIDTH, height=100, title="panel")
        .mark_point(color=theme.colour("works"))
        .encode(x="x:Q", y="y:Q", description="told:N")
    )
    told = {"name": "one", "title": "Whole title", "question": "?", "summary": "It is so."}
    return Figure(**told, panels=(chart,) * panels, **more)  # type: ignore[arg-type]


def contrast(one: str, other: str) -> float:
    """As WCAG defines it."""

    def luminance(colour: str) -> float:
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_a_panel_is_as_wide_as_it_says_and_names_colours() -> None:
    [svg] = render.panels(figure())
    root = ElementTree.fromstring(svg)
    assert root.get("width") == str(theme.PANEL_WIDTH)
    assert "var(--works)" in svg
    assert theme.LIGHT["works"] not in svg


def test_places_are_short_and_words_are_left_alone() -> None:
    [svg] = render.panels(figure())
    assert "1.23456789 &lt;b&gt;GiB&lt;/b&gt; &amp; more" in svg
    places = re.findall(r' (?:d|transform)="[^"]*"', svg)
    assert places
    assert not [each for each in places if re.search(r"\.\d{3}", each)]


def test_a_file_has_its_title_its_legend_and_no_names_of_colours() -> None:
    found = figure(2, legend=(("works", "● fits well"), ("failed", "two words")))
    svg = render.svg_file(found)
    told = [" ".join(each.itertext()) for each in ElementTree.fromstring(svg).iter()]
    for line in ("Whole title", "fits well", "●", "two words", "■"):
        assert line in told
    assert told.count("panel") >= 2
    assert "var(--" not in svg
    assert theme.LIGHT["page"] in svg
    png = vega.png(svg)
    assert png.startswith(b"\x89PNG")


def test_a_file_without_legend_has_none() -> None:
    assert "■" not in render.svg_file(figure())


@pytest.mark.parametrize("palette", [theme.LIGHT, theme.DARK], ids=["light", "dark"])
def test_every_colour_can_be_seen_on_its_ground(palette: dict[str, str]) -> None:
    assert set(palette) == set(theme.LIGHT)
    for name in ("text", "muted", "link"):
        assert contrast(palette[name], palette["page"]) >= 4.5
        assert contrast(palette[name], palette["raised"]) >= 4.5
    for name in set(palette) - {"page", "raised", "rule"}:
        assert contrast(palette[name], palette["page"]) >= 3.0, name
        # Words stand on marks in the colour of the page.
        assert contrast(palette["page"], palette[name]) >= 3.0, name


def test_series_come_again_after_eight() -> None:
    assert theme.series(0) == theme.series(8) == "var(--series-1)"
    with pytest.raises(KeyError):
        theme.colour("pink")


def test_lengths_are_short_as_long_as_they_differ() -> None:
    assert words.short_tokens([8192, 16_384, 131_072]) == {
        8192: "8k",
        16_384: "16k",
        131_072: "131k",
    }
    assert words.short_tokens([100_000, 100_400]) == {100_000: "100k", 100_400: "100.4k"}
    assert words.short_tokens([512, 1000]) == {512: "512", 1000: "1k"}
    assert listed(["a", "b", "c"]) == "a, b and c"
    assert listed([]) == ""
    assert words.further('{"a": true, "b": 0.5, "c": "fp8"}') == "a=on, b=0.5, c=fp8"
