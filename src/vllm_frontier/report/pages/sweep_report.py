"""The report of a sweep: one page of HTML, one of Markdown, and the pictures as files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from vllm_frontier.analyze.checks import Verdict
from vllm_frontier.analyze.frontier import candidates
from vllm_frontier.errors import StoreError
from vllm_frontier.report import checks, result, state
from vllm_frontier.report.disagreement import axes, disagreement_notes
from vllm_frontier.report.pages import (
    cells,
    choices,
    drawn,
    failing,
    frame,
    headline,
    judged,
    measured,
    picture_file,
)
from vllm_frontier.report.pages.beside import Beside
from vllm_frontier.report.pages.links import Folder
from vllm_frontier.report.pages.tabular import apart
from vllm_frontier.report.pictures import NAMES, pictures
from vllm_frontier.report.plots import render, vega
from vllm_frontier.report.plots.figure import Figure
from vllm_frontier.report.recommend import advice
from vllm_frontier.report.result import Result
from vllm_frontier.report.terminal.tables import speculation_notes
from vllm_frontier.report.unread import unread
from vllm_frontier.store import named
from vllm_frontier.store.paths import ReportPaths
from vllm_frontier.store.sweep_store import SweepStore

_KINDS = ("svg", "png")
_AFTERWARDS = ("timeline",)  # pictures that stand behind the checks


@dataclass(frozen=True, slots=True)
class Report:
    """A report that was drawn and not yet written."""

    found: Result
    progress: Mapping[str, Any]
    context: Mapping[str, Any]

    def html(self) -> str:
        """The page."""
        return frame.html("report.html.j2", self.context)

    def markdown(self) -> str:
        """The same in short, for a pull request or a wiki."""
        return frame.markdown_page("report.md.j2", self.context)


def make(
    sweep: Path,
    page: Path,
    *,
    at: datetime | None = None,
    beside: Beside | None = None,
    files: picture_file.Files | None = None,
) -> Report:
    """Read a sweep, also while it runs, and draw it.

    Args:
        sweep: its folder.
        page: the folder in which the report will lie, for links.
        at: the time that the report bears; None: now.
        beside: draws the panels; None: this process does.
        files: given every picture as soon as it is drawn.

    Raises:
        StoreError: the folder is no sweep.
    """
    found = result.load(sweep)
    begun = [(figure, _begun(figure, beside)) for figure in pictures(found)]
    progress = state.document(SweepStore.open(sweep), sweep, analysed=False)
    folder = Folder(page=page.resolve(), sweep=sweep.resolve())
    context = _context(found, progress, folder, at or datetime.now(UTC))
    shown = []
    for figure, svgs in begun:
        per_row = _per_row(found) if figure.name == "fits" else None
        shown.append(drawn.picture(figure, svgs(), per_row))
        if files is not None:
            files.add(shown[-1])
    context["pictures"] = [each for each in shown if each.name not in _AFTERWARDS]
    context["afterwards"] = [each for each in shown if each.name in _AFTERWARDS]
    return Report(found, progress, context)


def _begun(figure: Figure, beside: Beside | None) -> Callable[[], list[str]]:
    """What waits for the panels of a picture."""
    if beside is None:
        return partial(render.panels, figure)
    return beside.begin(vega.svgs, render.specifications(figure))


def write(sweep: Path, folder: Path, beside: Beside) -> dict[str, Any]:
    """Write the report of a sweep into a folder, all of it or nothing, the page last.

    Args:
        sweep: its folder.
        folder: made where it is not there.
        beside: draws meanwhile.

    Returns:
        What `report --json` prints: `sweep`, `simulated`, `state`, `reason`, `done`, `planned`
        and `damaged` (as in `status --json`), `html`, `markdown` and `plots` (a list of `name`,
        `svg`, `png`): the paths that were written.

    Raises:
        StoreError: the sweep's folder is none, or the other one cannot be written.
    """
    files = picture_file.Files(beside)
    report = make(sweep, folder, beside=beside, files=files)
    try:
        return _written(report, files, ReportPaths(folder))
    except StoreError as error:
        hint = "; --out names another folder" if folder == sweep else ""
        raise StoreError(f"{error}{hint}") from error


def _written(report: Report, files: picture_file.Files, paths: ReportPaths) -> dict[str, Any]:
    pages = [(paths.markdown, report.markdown().encode()), (paths.html, report.html().encode())]
    plots = []
    contents: list[tuple[Path, bytes]] = []
    for name, *images in files.each():
        where = {kind: paths.plots / f"{name}.{kind}" for kind in _KINDS}
        contents += zip(where.values(), images, strict=True)
        plots.append({"name": name, **{kind: str(path) for kind, path in where.items()}})
    contents += pages  # the page last
    named.check_folder(paths.plots)
    with named.made_folder(paths.plots):
        named.write_all(contents)
    for name in set(NAMES) - {each["name"] for each in plots}:  # of an earlier report
        for kind in _KINDS:
            if (paths.plots / f"{name}.{kind}").is_file():
                (paths.plots / f"{name}.{kind}").unlink()
    return {
        "sweep": report.found.name,
        "simulated": report.found.simulated,
        **{
            name: report.progress[name]
            for name in ("state", "reason", "done", "planned", "damaged")
        },
        "html": str(paths.html),
        "markdown": str(paths.markdown),
        "plots": plots,
    }


def told(written: Mapping[str, Any]) -> Iterator[str]:
    """What `report` prints: how far the sweep is, and the paths.

    Args:
        written: from `write`.
    """
    state = written["state"]
    if written["reason"] is not None:
        state = f"stopped by its budget ({written['reason']})"
    yield f"{written['sweep']}: {state}, {written['done']} of {written['planned']} cells known"
    if unreadable := unread(written["damaged"]):
        yield f"{unreadable}."
    yield written["html"]
    yield written["markdown"]
    if written["plots"]:
        plots = [Path(each["svg"]).stem for each in written["plots"]]
        yield f"{Path(written['plots'][0]['svg']).parent}: {', '.join(plots)} (SVG and PNG)"


def _context(
    found: Result,
    progress: Mapping[str, Any],
    folder: Folder,
    at: datetime,
) -> dict[str, Any]:
    """What the templates name, but for pictures."""
    document = result.document(found)
    advised = advice.document(advice.choose(found, advice.Wanted()))
    reasons = failing.failing(found, document, folder)
    remedy = reasons[0].help if reasons else ""
    return {
        "name": found.name,
        "simulated": found.simulated,
        "state": headline.state(progress),
        "at": at.strftime("%Y-%m-%d %H:%M UTC"),
        "answer": headline.answer(document, progress, _fault(found, document), remedy),
        "facts": headline.facts(found),
        "shares": headline.shares(document),
        "launches": headline.launches(document),
        "changes": measured.changes(found),
        "cards": choices.cards(advised["choices"]),
        "how_to": choices.how_to(
            advised["choices"], advised["notes"], str(found.config["model"]["name"])
        ),
        "frontier": cells.frontier(document),
        "frontier_notes": cells.frontier_notes(document),
        "frontier_warnings": cells.frontier_warnings(document),
        "speculation_notes": [text.plain for text in speculation_notes(document["grid"])],
        "without_speed": document["without_speed"] if document["frontier"] else 0,
        "contradictions": [
            (apart(axes(pair["fails"])), apart(axes(pair["works"])))
            for pair in document["contradictions"]
        ],
        "disagreement_notes": [apart(line) for line in disagreement_notes(document)],
        "failing": reasons,
        "judged": judged.judged(document["checks"]),
        "boundaries": cells.boundaries(document),
        "speeds": cells.speeds(document),
        "every": cells.every(found, document),
        "how": measured.how(found),
        "files": measured.files(folder),
    }


def _fault(found: Result, document: Mapping[str, Any]) -> headline.Fault | None:
    """What is wrong with what the choices write."""
    if not checks.cells_of(document["checks"], checks.OUTPUT, Verdict.WARN):
        return None
    working = candidates(found.trials.lazy(), found.runs.lazy()).collect()
    return headline.fault(
        document["choices"], document["checks"], list(working.iter_rows(named=True))
    )


def _per_row(found: Result) -> int | None:
    """How many panels of what fits stand in a row, so that those of each switch stand together."""
    panels = found.boundaries.select("extra", "graphs", "utilization").unique()
    counts = panels.group_by("extra", "graphs").len()["len"].unique()
    return int(counts[0]) if len(counts) == 1 and panels["graphs"].n_unique() > 1 else None
