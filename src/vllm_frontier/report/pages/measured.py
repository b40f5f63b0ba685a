"""How a sweep was measured, in names and words, and which files hold the rest."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from vllm_frontier.report.pages.links import Folder
from vllm_frontier.report.result import Result
from vllm_frontier.report.wording import several
from vllm_frontier.store.paths import TABLES, SweepPaths


def how(found: Result) -> list[tuple[str, str]]:
    """Workload, search and engine, as names and words."""
    return [(name, words) for name, words in _told(found.config) if words]


def changes(found: Result) -> list[str]:
    """How the identity of a sweep changed while it ran; empty where it did not."""
    return sorted(found.trials["changed"].drop_nulls().unique())


def files(folder: Folder) -> list[tuple[str, str]]:
    """The sweep's own files that are there: name and link."""
    paths = SweepPaths(folder.sweep)
    named = [paths.sweep_yaml, *(paths.table(name) for name in TABLES)]
    return [(path.name, folder.link(path)) for path in named if path.is_file()]


def _told(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    work, search = config["workload"], config.get("search") or {}
    engine, model = config["engine"], config["model"]
    yield "Tasks", ", ".join(work["tasks"])
    yield "Repeats", _repeats(work)
    yield "Launches", _launches(work)
    yield "Sampling", f"temperature {work.get('temperature') or 0:g}"
    prefill = work.get("prefill_tokens")
    yield "Prefill", f"a prompt of {prefill:,} tokens that nothing has cached" if prefill else ""
    yield "Search", _search(search)
    speculation = model.get("speculation") or {}
    yield "Speculation", _speculation(speculation)
    yield "Model arguments", _arguments(model.get("args"))
    yield "Engine arguments", _arguments(engine.get("args"))


def _repeats(work: Mapping[str, Any]) -> str:
    told = f"each task {several(int(work.get('repeats') or 1), 'time', 'times')} a launch"
    if work.get("precision"):
        told += f", more often until its interval is within {work['precision']:.1%}"
    return told


def _launches(work: Mapping[str, Any]) -> str:
    told = f"{several(int(work.get('replicates') or 1), 'launch', 'launches')} of a measured cell"
    if work.get("reference", True):
        told += "; one cell again in the middle and at the end, to see drift"
    return told


def _search(search: Mapping[str, Any]) -> str:
    limits = [
        f"{name} {search[name]:g}"
        for name in ("max_launches", "max_hours")
        if search.get(name) is not None
    ]
    return ", ".join([str(search.get("strategy") or ""), *limits])


def _speculation(speculation: Mapping[str, Any]) -> str:
    drafter = f" with {speculation['model']}" if speculation.get("model") else ""
    return f"{speculation.get('method') or ''}{drafter}"


def _arguments(arguments: Mapping[str, Any] | None) -> str:
    """Arguments as they were set: text as it is, all else as JSON."""
    return ", ".join(
        f"{name} {value if isinstance(value, str) else json.dumps(value)}"
        for name, value in (arguments or {}).items()
    )
