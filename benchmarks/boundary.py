"""How few launches the boundary search needs, and whether what it finds is true.

    python benchmarks/boundary.py [--cards 200] [--broken 40] [--seed 1]

Sweeps of 672 cells are rehearsed on random described cards, and what the search found is held
against the card. Prints a table in Markdown. The exit code is 1 where a limit is not kept.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "rehearsals"))

from random_cards import BROKEN, GRID, least_launches, monotone, run

from vllm_frontier.outcome import Purpose
from vllm_frontier.rehearse import Rehearsal, frontier_of, works_on

CELLS = len(GRID.cells())
SPARE = 6  # launches beyond a multiple of the least, on the worst card
COMMAND_S = 2.0


@dataclass(frozen=True)
class Row:
    """A line of the table: what was asked for and what came out."""

    name: str
    wanted: str
    found: str
    kept: bool


def launches(found: Rehearsal) -> int:
    """Launches to learn what works, spot checks included."""
    return found.count(Purpose.PROOF, Purpose.AUDIT)


def as_exhaustive(found: Rehearsal, *, whole_map: bool) -> bool:
    """Whether frontier and launched cells are those of a sweep that launches every cell."""
    every = {
        cell: outcome.speed.decode_tok_s
        for cell, outcome in found.truth.items()
        if outcome.speed is not None
    }
    truth = {cell: works_on(outcome) for cell, outcome in found.truth.items()}
    same_map = not whole_map or found.answers == truth
    return same_map and not found.wrong and set(found.frontier) == set(frontier_of(every))


def monotone_rows(cards: int, seed: int) -> Iterator[Row]:
    """Both ways to verify on cards where memory alone decides."""
    draw = random.Random(seed)
    least, proven, leading, same = [], [], [], 0
    for _ in range(cards):
        card = monotone(draw)
        boundaries, frontier = run(card), run(card, verify="frontier")
        truth = {cell: works_on(outcome) for cell, outcome in boundaries.truth.items()}
        least.append(least_launches(truth))
        proven.append(launches(boundaries))
        leading.append(launches(frontier))
        same += as_exhaustive(boundaries, whole_map=True)
        same += as_exhaustive(frontier, whole_map=False)
    over = [made / fewest for made, fewest in zip(proven, least, strict=True)]
    spare = max(made - 1.5 * fewest for made, fewest in zip(proven, least, strict=True))
    median = statistics.median(over)
    yield Row(
        f"frontier and answers as with every cell launched, {cards} cards, both ways to verify",
        "all",
        f"{same} of {2 * cards}",
        same == 2 * cards,
    )
    yield Row(
        f"launches over the least that proves the map ({_share(least)} of the grid, median)",
        "median 1.3",
        f"median {median:.2f}, worst {max(over):.2f}",
        median <= 1.3,
    )
    yield Row(
        f"the same, worst card: beyond 1.5 times the least, at most {SPARE}",
        str(SPARE),
        f"{spare:.1f}",
        spare <= SPARE,
    )
    yield _of_grid("verify: boundaries", proven, median=0.045, worst=None)
    yield _of_grid("verify: frontier", leading, median=0.035, worst=0.07)


def _of_grid(name: str, made: Sequence[int], *, median: float, worst: float | None) -> Row:
    typical, most = statistics.median(made) / CELLS, max(made) / CELLS
    wanted = f"median {median:.1%}" + (f", worst {worst:.0%}" if worst else "")
    kept = typical <= median and (worst is None or most <= worst)
    return Row(
        f"launches of the grid's {CELLS}, {name}",
        wanted,
        f"median {typical:.1%}, worst {most:.1%}",
        kept,
    )


def broken_rows(cards: int, seed: int) -> Iterator[Row]:
    """Cards on which more than memory decides."""
    for name, make in BROKEN.items():
        draw = random.Random(f"{seed} {name}")
        made, wrong, missed, doubted, outside = [], 0, 0, 0, 0
        for _ in range(cards):
            found = run(make(draw))
            made.append(launches(found))
            wrong += len(found.wrong)
            missed += len(found.inferred_wrong)
            doubted += len(set(found.inferred_wrong) & set(found.in_doubt))
            outside += len(set(found.inferred_wrong) - set(found.uncertain))
        yield Row(
            f"{name}, {cards} cards: launched cells wrong; inferred ones not said to be uncertain",
            "0; 0",
            f"{wrong}; {outside} ({missed} inferred wrong, {doubted} of them in doubt; "
            f"launches: median {_share(made)}, worst {max(made) / CELLS:.1%})",
            wrong == 0 and outside == 0,
        )


def command_row() -> Row:
    """The whole command, with this interpreter."""
    axes = [
        f"grid.depth={list(GRID.depth)}",
        f"grid.context={list(GRID.context)}",
        f"grid.utilization={list(GRID.utilization)}",
    ]
    words = ["rehearse", "rtx5090-qwen3.8-27b-nvfp4", "--json", *axes]
    best = float("inf")
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(3):
            began = time.monotonic()
            subprocess.run(
                [sys.executable, "-m", "vllm_frontier", *words],
                check=True,
                stdout=subprocess.DEVNULL,
                cwd=folder,
            )
            best = min(best, time.monotonic() - began)
    return Row(
        f"`rehearse` of {CELLS} cells", f"{COMMAND_S:g} s", f"{best:.2f} s", best < COMMAND_S
    )


def _share(counts: Sequence[int]) -> str:
    return f"{statistics.median(counts) / CELLS:.1%}"


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cards", type=int, default=200, help="monotone cards")
    parser.add_argument("--broken", type=int, default=40, help="cards of every other kind")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    print(f"Load of the machine before: {os.getloadavg()[0]:.1f}\n")
    print("| what | wanted, at most | found | |\n|---|---|---|---|")
    kept = True
    for rows in (
        monotone_rows(asked.cards, asked.seed),
        broken_rows(asked.broken, asked.seed),
        iter([command_row()]),
    ):
        for row in rows:
            kept &= row.kept
            verdict = "" if row.kept else "not kept"
            print(f"| {row.name} | {row.wanted} | {row.found} | {verdict} |", flush=True)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
