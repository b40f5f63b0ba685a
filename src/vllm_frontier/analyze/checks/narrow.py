"""Whether launches measured as exactly as they were asked to."""

from __future__ import annotations

import math

import polars as pl

from vllm_frontier.analyze.checks.evidence import Evidence
from vllm_frontier.analyze.checks.judgement import Judgement, Verdict, rows
from vllm_frontier.measure.precision import half_widths
from vllm_frontier.outcome import Run

_FIGURES = ("task", "repeat", "variant", "decode_tok_s")


def precision(evidence: Evidence, wanted: float) -> Judgement:
    """In how many launches the interval of a task stayed wider than was asked for.

    Repeats end at `workload.repeats_max`, however wide it is by then. By the rule that ends them
    earlier; launches that were made under another precision are held against this one, too.

    Args:
        evidence: of the sweep.
        wanted: half of the interval of a task within the launch, as a share of its median.
    """
    speeds = evidence.decode.filter(pl.col("task").is_not_null())
    if speeds.is_empty():
        return "no run tells a speed"
    widest = [
        max((half, task) for task, half in half_widths(_runs(of_launch)).items())
        for of_launch in speeds.partition_by("launch", maintain_order=True)
    ]
    wide = [each for each in widest if each[0] > wanted]
    known = [each for each in wide if math.isfinite(each[0])]
    launches = f"{len(widest)} {'launch' if len(widest) == 1 else 'launches'}"
    if not wide:
        detail = f"precision {_share(wanted)} reached in all of {launches}"
    else:
        detail = f"precision {_share(wanted)} not reached in {len(wide)} of {launches}"
    if known:
        detail += f", at worst ±{_share(max(known)[0])} ({max(known)[1]})"
    if len(known) < len(wide):
        detail += f"; in {len(wide) - len(known)} of them too few runs tell how exact they are"
    worst = max(known) if known else max(widest)
    found = pl.DataFrame(
        {
            "verdict": [(Verdict.WARN if wide else Verdict.PASS).value],
            "value": [worst[0]],
            "expected": [wanted],
            "detail": [detail],
        }
    )
    return rows(found, "share", nothing="")


def _runs(of_launch: pl.DataFrame) -> list[Run]:
    return [
        Run(task=task, repeat=repeat, kind="decode", variant=variant, decode_tok_s=speed)
        for task, repeat, variant, speed in of_launch.select(_FIGURES).iter_rows()
    ]


def _share(share: float) -> str:
    return f"{100 * share:.3g} %"
