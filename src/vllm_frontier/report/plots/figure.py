"""What a picture is: charts, the question they answer, and the same in words and numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import altair as alt
import polars as pl

Panel: TypeAlias = "alt.Chart | alt.LayerChart | alt.VConcatChart"


@dataclass(frozen=True, slots=True)
class Figure:
    """One picture, made of panels that stand side by side where there is room.

    Attributes:
        name: what its files are called, such as `fits`; also the fragment in the page.
        title: its heading, such as `What fits`.
        question: what it answers, one sentence with a question mark.
        summary: the answer in words, for those who cannot see it; one to three sentences.
        panels: charts of at most `theme.PANEL_WIDTH` pixels, each with a title of its own where
            there are several. Every mark that stands for data has a `description`, which is
            read aloud and shown when the mark is pointed at. Colours are those of `theme`.
        table: the same as figures, at most some dozen rows; column names are words for people.
            None: the page has them elsewhere.
        legend: what colours and signs mean, as pairs of a theme colour's name and words, where
            the charts themselves have no legend.
        notes: what must be known to read it right, a sentence each.
    """

    name: str
    title: str
    question: str
    summary: str
    panels: tuple[Panel, ...]
    table: pl.DataFrame | None = None
    legend: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
