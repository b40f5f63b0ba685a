"""Hold the server's clock against `vllm bench serve` and against a client that is stopped.

    python benchmarks/clocks.py [--depth 0] [--times 12]

Needs vLLM for CPU, and a machine that has little else to do. One server with the bundled model
answers, in turn, us and `vllm bench serve` (the same prompts, greedy, one request at a time), then
a client that is undisturbed or stopped by a signal for a part of its stream. Prints two tables in
Markdown. The exit code is 1 where our speed differs by 3 % or more from that of `vllm bench serve`
on the server's clock, or a stopped client moves it by 5 % or more.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "engine"))

from running_vllm import Asked, Read, Reader, ask_all, bench_serve, serving

from vllm_frontier.measure.client import ServerClient
from vllm_frontier.measure.task import load_task

TASKS = ("edit", "code", "prose")
TOKENS = 256
EVERY_S = 2.5  # from one request of `vllm bench serve` to the next, ours between them
# What is done to a client: seconds after it has sent, and seconds for which it is stopped.
STOPS = {
    "nothing": (),
    "stopped from before the first piece": ((0.02, 2.5),),
    "stopped from the middle on": ((0.3, 2.5),),
    "stopped three times": ((0.1, 0.3), (0.1, 0.3), (0.1, 0.3)),
}


@dataclass
class Figures:
    """What was measured, speeds in tokens per second."""

    ours: list[Asked] = field(default_factory=list)
    theirs: list[Asked] = field(default_factory=list)
    reads: dict[str, list[Read]] = field(default_factory=lambda: {what: [] for what in STOPS})


def measure(client: ServerClient, times: int, folder: Path) -> Figures:
    """Ask in turn, one request of ours after each of theirs."""
    prompts = [load_task(task).prompt(0) for task in TASKS]
    ask_all(client, prompts, times=1, tokens=TOKENS)
    found = Figures()

    def ask_too(number: int) -> int:
        asked = ask_all(client, [prompts[number]], times=1, tokens=TOKENS)
        found.ours.extend(replace(run, prompt=number) for run in asked)
        return 1

    found.theirs = bench_serve(
        client,
        prompts,
        times=times,
        tokens=TOKENS,
        folder=folder,
        every_s=EVERY_S,
        after_each=ask_too,
    )
    with Reader(client, TOKENS) as reader:
        reader.read()
        for _ in range(times):
            for what, stops in STOPS.items():
                found.reads[what].append(reader.read(stops))
    return found


def compared(found: Figures) -> Iterator[tuple[str, ...]]:
    """Rows of the first table."""
    for number, task in enumerate(TASKS):
        ours, theirs = (
            [run for run in runs if run.prompt == number] for runs in (found.ours, found.theirs)
        )
        our_speed, their_speed = (median_server(runs) for runs in (ours, theirs))
        same = statistics.median(run.client / run.server - 1 for run in theirs)
        yield (
            task,
            f"{len(ours)}, {len(theirs)}",
            f"{our_speed:.1f}",
            f"{their_speed:.1f}",
            f"{our_speed / their_speed - 1:+.1%}",
            f"{max(r.server for r in ours) / max(r.server for r in theirs) - 1:+.1%}",
            f"{same:+.1%}",
        )


def difference(found: Figures) -> float:
    """Of our speed from theirs, median over tasks of the medians."""
    ratios = []
    for number in range(len(TASKS)):
        ours, theirs = (
            median_server([run for run in runs if run.prompt == number])
            for runs in (found.ours, found.theirs)
        )
        ratios.append(ours / theirs - 1)
    return statistics.median(ratios)


def median_server(runs: Sequence[Asked | Read]) -> float:
    """The median speed on the server's clock."""
    return float(statistics.median(run.server for run in runs))


def starved(found: Figures) -> Iterator[tuple[str, ...]]:
    """Rows of the second table."""
    undisturbed = median_server(found.reads["nothing"])
    for what, reads in found.reads.items():
        off = sum(abs(read.client / read.server - 1) > 0.1 for read in reads)
        by_client = [read.client for read in reads]
        yield (
            what,
            f"{median_server(reads):.1f}",
            f"{median_server(reads) / undisturbed - 1:+.1%}",
            f"{min(by_client):.0f} to {max(by_client):,.0f}",
            f"{off} of {len(reads)}",
        )


def table(head: Sequence[str], rows: Iterator[tuple[str, ...]]) -> None:
    """Print a table in Markdown."""
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--depth", type=int, default=0)
    parser.add_argument("--times", type=int, default=12, help="how often everything is asked")
    asked = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(Path(folder), depth=asked.depth) as client,
    ):
        found = measure(client, asked.times, Path(folder))
    table(
        ("task", "requests", "ours", "bench serve", "difference", "of the best", "its stopwatch"),
        compared(found),
    )
    table(
        ("client", "server's clock", "difference", "client's clock", "more than 10 % apart"),
        starved(found),
    )
    moved = [
        median_server(reads) / median_server(found.reads["nothing"]) - 1
        for reads in found.reads.values()
    ]
    return int(abs(difference(found)) >= 0.03 or max(map(abs, moved)) >= 0.05)


if __name__ == "__main__":
    sys.exit(main())
