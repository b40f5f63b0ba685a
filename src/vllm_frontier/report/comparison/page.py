"""Sweeps side by side as a page of HTML and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vllm_frontier.analyze.comparison.windows import Known
from vllm_frontier.analyze.intervals import RUNS
from vllm_frontier.grid import shortest
from vllm_frontier.report.comparison import words
from vllm_frontier.report.pages import drawn, frame
from vllm_frontier.report.pages.tabular import NONE, Table, fixed, from_rows, grouped
from vllm_frontier.report.plots import comparison as plots
from vllm_frontier.report.plots.figure import Figure
from vllm_frontier.report.terminal.plain_table import extra_axes
from vllm_frontier.report.wording import on_off
from vllm_frontier.store import named

Document = Mapping[str, Any]

_RESTS_ON = {
    Known.LAUNCHED: "launches",
    Known.INFERRED: "in part launches of other cells",
    Known.OPEN: "open: cells between are not known",
    Known.NOT_MONOTONE: "launches that disagree",
}
_NO_BREAK = "\N{NO-BREAK SPACE}"


def write(
    document: Document,
    *,
    html: Path | None = None,
    markdown: Path | None = None,
    at: datetime | None = None,
) -> None:
    """Write the page, or the same without pictures for a pull request or a wiki, or both.

    Args:
        document: from `document.compare`.
        html: file of the page; what stands there is replaced, see `store.named`.
        markdown: file of the Markdown, in the same way.
        at: the time that they bear; None: now.

    Raises:
        StoreError: a file cannot be written, or both are one.
    """
    context = _context(document, at)
    files = []
    if html is not None:
        pictures = [drawn.picture(each) for each in figures_of(document)]
        files.append((html, frame.html("compare.html.j2", {**context, "pictures": pictures})))
    if markdown is not None:
        files.append((markdown, frame.markdown_page("compare.md.j2", context)))
    named.write_all([(path, text.encode()) for path, text in files])


def figures_of(document: Document) -> list[Figure]:
    """The pictures that there is something to show for."""
    names = [each["name"] for each in document["sweeps"]]
    base = document["base"]
    simulated = all(each["simulated"] for each in document["sweeps"])
    found: list[Figure | None] = []
    if document["windows"]:
        told = " ".join(
            words.windows(_against(document["windows"], name), base, name) for name in names[1:]
        )
        found.append(plots.windows(document["windows"], names, told, simulated=simulated))
    for speeds in document["speeds"]:
        if speeds["rows"]:
            told = words.speeds(speeds, base)
            rows, fewer = words.telling(speeds["rows"])
            notes = [*([f"{fewer} All are in the table."] if fewer else []), *speeds["notes"]]
            shown = {**speeds, "rows": rows, "notes": notes}
            found.append(plots.ratios(shown, base, told, simulated=simulated))
    for name in names[1:]:
        memory = words.at_largest_share(_against(document["memory"], name))
        told = " ".join(
            [
                words.left_for_cache(memory, base, name),
                *words.graphs_moved(memory, base, name),
                *words.window_needs(document, name),
            ]
        )
        found.append(plots.memory(memory, base, name, told, simulated=simulated))
    return [each for each in found if each is not None]


def _against(rows: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["against"] == name]


def _context(document: Document, at: datetime | None) -> dict[str, Any]:
    names = [each["name"] for each in document["sweeps"]]
    parts = []
    for name, speeds in zip(names[1:], document["speeds"], strict=True):
        parts.append(
            {
                "name": name,
                "heading": words.heading([names[0], name]),
                "reason": speeds["reason"],
                "answer": [
                    words.windows(_against(document["windows"], name), names[0], name),
                    *_fast(speeds, document),
                ],
                "windows": _windows(document, name),
                "speeds": _speeds(document, speeds) if speeds["rows"] else None,
                "notes": speeds["notes"],
                "memory": _memory(document, name),
            }
        )
    return {
        "title": words.heading(names),
        "simulated": all(each["simulated"] for each in document["sweeps"]),
        "at": (at or datetime.now(UTC)).strftime("%Y-%m-%d %H:%M UTC"),
        "sweeps": [words.of_sweep(each) for each in document["sweeps"]],
        "notes": [*document["notes"], *words.only_in(document)],
        "differences": _differences(document),
        "against": parts,
        "choices": _choices(document),
        "every": _every(document),
    }


def _fast(speeds: Mapping[str, Any], document: Document) -> Iterator[str]:
    if speeds["reason"] is not None:
        yield f"Speeds are not compared: {speeds['reason']}."
    elif speeds["rows"]:
        yield words.speeds(speeds, document["base"])
    else:
        yield words.nothing_fast(document["base"], speeds["against"])


def _differences(document: Document) -> Table | None:
    if not document["differences"]:
        return None
    names = [each["name"] for each in document["sweeps"]]
    columns = [("setting", False), *((name, False) for name in names)]
    rows = [
        [each["word"], *(words.value(each["values"][name]) for name in names)]
        for each in document["differences"]
    ]
    return from_rows("Settings that differ", columns, rows)


def _places(rows: list[dict[str, Any]]) -> tuple[list[tuple[str, bool]], list[str]]:
    """The columns of the axes but context, and the further ones by name."""
    extra = extra_axes(rows)
    columns = [("depth", True), ("graphs", False), ("utilization", True)]
    return [*columns, *((name, False) for name in extra)], extra


def _place(row: Mapping[str, Any], extra: list[str]) -> list[str]:
    further = [words.value(row[name]) if name in row else NONE for name in extra]
    return [str(row["depth"]), on_off(row["graphs"]), shortest(row["utilization"]), *further]


def _windows(document: Document, name: str) -> Table:
    rows, base = _against(document["windows"], name), document["base"]
    columns, extra = _places(rows)
    ends = [(f"{of}, {what}", True) for of in (base, name) for what in ("up to", "refused at")]
    shares = words.share_of_base(rows)
    columns += [*ends, ("difference", True), *([("share", True)] if shares else [])]
    columns += [(name, False), ("known by", False)]
    told = []
    for row in rows:
        sides = [row["base"], row["other"]]
        figures = [
            "not in grid" if side is None else grouped(side[key])
            for side in sides
            for key in ("max_context_works", "min_context_fails")
        ]
        known = [NONE if side is None else _RESTS_ON[side["known"]] for side in sides]
        told.append(
            [
                *_place(row, extra),
                *figures,
                _signed(row["difference"]),
                *(
                    [NONE if row["share"] is None else words.percent(row["share"])]
                    if shares
                    else []
                ),
                _on_a_line(words.reach(row["reach"], base, name)),
                known[0] if known[0] == known[1] else _on_a_line(" / ".join(known)),
            ]
        )
    title = f"Longest window that works: {words.heading([base, name])}"
    return from_rows(title, columns, told)


def _signed(difference: int | None) -> str:
    """How many tokens more or less; 0 without a sign."""
    if difference is None:
        return NONE
    return f"{difference:+,d}" if difference else "0"


def _on_a_line(text: str) -> str:
    """Words that a narrow column does not break: rows of one line are easier to go along."""
    return text.replace(" ", _NO_BREAK)


def _speeds(document: Document, speeds: Mapping[str, Any]) -> Table:
    rows, base, name = speeds["rows"], document["base"], speeds["against"]
    extra = extra_axes(rows)
    tasks = sorted({task for row in rows for task in row["tasks"]})
    columns = [("depth", True), ("graphs", False), *((each, False) for each in extra)]
    columns += [
        ("measured at", False),
        ("utilization", True),
        (base, True),
        (name, True),
        ("ratio", True),
    ]
    columns += [("95 %", True), ("verdict", False)]
    columns += [
        (f"{task}: {what}", what == "ratio") for task in tasks for what in ("ratio", "verdict")
    ]
    told = []
    for row in rows:
        own, others = row["base"], row["other"]
        at = grouped(own["context"])
        if own["context"] != others["context"]:
            at += f" / {grouped(others['context'])}"
        of_tasks = [row["tasks"].get(task) for task in tasks]
        told.append(
            [
                str(row["depth"]),
                on_off(row["graphs"]),
                *(words.value(row[each]) if each in row else NONE for each in extra),
                at + ("" if row["same_cell"] else " ~"),
                words.shares_of(own["utilization"], others["utilization"]).replace("/", " / "),
                fixed(own["decode_tok_s"], 1) + (" !" if own["broken"] else ""),
                fixed(others["decode_tok_s"], 1) + (" !" if others["broken"] else ""),
                fixed(row["ratio"], 3),
                _interval(row),
                row["verdict"],
                *(
                    text
                    for each in of_tasks
                    for text in (
                        (NONE, NONE)
                        if each is None
                        else (f"{fixed(each['ratio'], 3)} ({_interval(each)})", each["verdict"])
                    )
                ),
            ]
        )
    return from_rows(f"Decode speed, tokens/s: {words.heading([base, name])}", columns, told)


def _interval(row: Mapping[str, Any]) -> str:
    if row["ratio_low"] is None:
        return NONE
    mark = "*" if row["basis"] == RUNS else ""
    return f"{row['ratio_low']:.3f} to {row['ratio_high']:.3f}{mark}"


def _memory(document: Document, name: str) -> Table | None:
    rows, base = _against(document["memory"], name), document["base"]
    if not rows:
        return None
    columns, extra = _places(rows)
    columns += [("part", False), (f"{base}, GiB", True), (f"{name}, GiB", True)]
    columns += [("difference", True), ("known by", False)]
    told = []
    for row in rows:
        for part in row["parts"]:
            sources = [part[f"{side}_source"] or NONE for side in ("base", "other")]
            gap = part["difference"]
            told.append(
                [
                    *_place(row, extra),
                    part["part"],
                    fixed(part["base"], 2),
                    fixed(part["other"], 2),
                    NONE if gap is None else f"{gap:+.2f}",
                    sources[0] if sources[0] == sources[1] else " / ".join(sources),
                ]
            )
    return from_rows(f"Memory: {words.heading([base, name])}", columns, told)


def _choices(document: Document) -> Table:
    cells = [
        (each["choice"], name, cell)
        for each in document["choices"]
        for name, cell in each["sweeps"].items()
    ]
    extra = extra_axes([cell for *_, cell in cells if cell is not None])
    columns = [("choice", False), ("sweep", False), ("window", True), ("depth", True)]
    columns += [("graphs", False), ("utilization", True), *((name, False) for name in extra)]
    columns += [("tokens/s", True), ("95 %", True), ("spare, GiB", True)]
    told = []
    for choice, name, cell in cells:
        if cell is None:
            told.append([choice, name, *(NONE for _ in columns[2:])])
            continue
        low, high = cell["decode_tok_s_low"], cell["decode_tok_s_high"]
        within = "*" if cell["interval_basis"] == RUNS else ""
        told.append(
            [
                choice,
                name,
                grouped(cell["context"]),
                *_place(cell, extra),
                fixed(cell["decode_tok_s"], 1),
                NONE if low is None else f"{low:.1f} to {high:.1f}{within}",
                fixed(cell["kv_headroom_gib"], 2),
            ]
        )
    return from_rows("Choices of each sweep", columns, told)


def _every(document: Document) -> Table:
    rows = document["grid"]
    names = [each["name"] for each in document["sweeps"]]
    columns, extra = _places(rows)
    columns = [("context", True), *columns, *((name, False) for name in names)]
    told = [
        [
            grouped(row["context"]),
            *_place(row, extra),
            *(_state(row, name) for name in names),
        ]
        for row in rows
    ]
    return from_rows("Every cell", columns, told)


def _state(row: Mapping[str, Any], name: str) -> str:
    state = row["states"].get(name)
    if state is None:
        return "not in grid"
    reason = row["failure_classes"].get(name)
    return state if reason is None else f"{state}: {reason}"
