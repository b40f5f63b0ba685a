"""Kill sweeps again and again, resume them, and count what went wrong.

    python benchmarks/kills.py [--kills 200] [--seed 0] [--per-sweep 5] [--engine simulated]
    python benchmarks/kills.py --engine vllm-cpu --kills 10

Every sweep meets a few kills, one after another: SIGKILL before a drawn step that changes a file,
SIGKILL of drawn processes in a drawn phase without Ray, and the same through Ray. After each it is
resumed. At its end its tables are compared with those of a sweep that was never killed, and
whatever it left is looked for. Prints a table in Markdown and then every problem. The exit code
is 1 where there is one.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "kills"))

from kill_trial import ORPHANS_S, Kill, KillTrial, Verdict
from phases import PHASES_OF_VLLM
from sweep_under_test import (
    CELLS,
    CELLS_OF_VLLM,
    COMMAND,
    IN_ONE_PROCESS,
    WORDS,
    WORDS_OF_VLLM,
    SweepUnderTest,
    write_card,
)

TERM, INT = signal.SIGTERM, signal.SIGINT
ATTEMPT = ("spawn", "load", "profile", "capture", "fill", "measure")
SERVER = ("supervisor", "api server", "engine core", "worker")
# Not every role is there in every phase, and while a phase is short it is met by luck only.
ENDING_IN_ONE_PROCESS = [
    *(Kill(("driver",), phase) for phase in ("open", *ATTEMPT, "stop", "record")),
    *(Kill(("driver", "supervisor"), phase) for phase in ("load", "capture", "measure")),
    *(Kill(("driver",), phase, number) for phase in ("fill", "measure") for number in (TERM, INT)),
]
ENDING_THROUGH_RAY = [
    *(Kill(("driver",), phase) for phase in ("open", *ATTEMPT, "stop", "between")),
    *(Kill((role,), phase) for role in ("raylet", "gcs_server") for phase in ("load", "measure")),
    *(Kill(("driver", "ray worker", "supervisor"), phase) for phase in ("load", "measure")),
    *(Kill(("driver",), phase, number) for phase in ("load", "measure") for number in (TERM, INT)),
]
SURVIVED = [Kill((role,), phase) for role in SERVER for phase in ("load", "profile", "measure")]
SURVIVED_THROUGH_RAY = [
    *SURVIVED,
    *(Kill(("ray worker",), phase) for phase in ("load", "profile", "measure")),
]
ON_VLLM = [
    [
        Kill(("driver",), "configure"),
        Kill(("driver",), "load"),
        Kill(("driver",), "measure"),
        Kill(("driver", "ray worker", "supervisor"), "measure"),
        Kill(("driver",), "measure", TERM),
    ],
    [
        Kill(("driver",), "load", INT),
        Kill(("raylet",), "load"),
        Kill(("worker",), "measure"),
        Kill(("engine core",), "measure"),
        Kill(("api server",), "load"),
    ],
]
LAST_AT_ONCE = 60  # steps of a process that finishes about two cells
VLLM_NOTICE_S = 15.0  # until an API server goes whose engine was killed
VLLM_S = 900.0  # a start takes half a minute, and there are three
WRITES, ONE_PROCESS, RAY = 0.5, 0.35, 0.15  # shares of the kills


@dataclass
class Row:
    """What is counted of one kind of kill."""

    kills: int = 0
    equal: int = 0
    twice: int = 0
    processes: int = 0
    left: int = 0
    slowest_s: float = 0.0

    def add(self, verdict: Verdict, *, equal: bool, left: bool) -> None:
        """Count a kill; tables and leavings are those of its whole sweep."""
        self.kills += 1
        self.equal += equal
        self.twice += len(verdict.twice)
        self.processes += len(verdict.processes)
        self.left += left
        # What nobody is left to end, the next start ends.
        self.slowest_s = max(
            self.slowest_s, ORPHANS_S if verdict.gone_s is None else verdict.gone_s
        )


@dataclass
class Count:
    """All kinds of kills, and all problems."""

    rows: dict[tuple[str, str, str], Row] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    kills: int = 0
    missed: int = 0

    def add(self, how: str, verdicts: Sequence[Verdict]) -> None:
        """Count the kills of one sweep."""
        equal, left = not verdicts[-1].unlike, bool(verdicts[-1].left)
        for verdict in verdicts:
            self.problems += verdict.problems
            if not verdict.hit:
                self.missed += 1
                continue
            self.kills += 1
            row = self.rows.setdefault((how, verdict.who, verdict.phase), Row())
            row.add(verdict, equal=equal, left=left)
        told = sum(verdict.hit for verdict in verdicts)
        print(f"{self.kills} kills, {told} of them just now {how}", file=sys.stderr, flush=True)

    def table(self) -> Iterator[str]:
        """The lines of a table in Markdown."""
        yield (
            "| how | killed | in | kills | tables equal | finished cells launched twice "
            "| processes left | folders or segments left | launch gone after at most, s |"
        )
        yield "|---|---|---|---:|---:|---:|---:|---:|---:|"
        whole = Row()
        for (how, who, phase), row in sorted(self.rows.items()):
            yield _line(how, who, phase, row)
            for name in ("kills", "equal", "twice", "processes", "left"):
                setattr(whole, name, getattr(whole, name) + getattr(row, name))
            if row.slowest_s != ORPHANS_S:
                whole.slowest_s = max(whole.slowest_s, row.slowest_s)
        yield _line("all", "", "", whole)


def _line(how: str, who: str, phase: str, row: Row) -> str:
    figures = f"{row.kills} | {row.equal} | {row.twice} | {row.processes} | {row.left}"
    slowest = "next start" if row.slowest_s == ORPHANS_S else f"{row.slowest_s:.2f}"
    return f"| {how} | {who} | {phase} | {figures} | {slowest} |"


def main() -> int:
    """Run the kills; 1 where one of them did damage."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--engine", choices=("simulated", "vllm-cpu"), default="simulated")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--per-sweep", type=int, default=5, help="kills that one sweep meets")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--python", default=sys.executable, help="interpreter with vLLM in it")
    options = parser.parse_args()
    began = time.monotonic()
    count = Count()
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        if options.engine == "simulated":
            _simulated(Path(folder), count, options)
        else:
            _real(Path(folder), count, options)
    print("\n".join(count.table()))
    minutes = (time.monotonic() - began) / 60
    print(f"\n{count.kills} kills in {minutes:.0f} minutes; {count.missed} came too late to hit.")
    for problem in count.problems:
        print(f"- {problem}")
    return 1 if count.problems else 0


def _simulated(folder: Path, count: Count, options: argparse.Namespace) -> None:
    draw = random.Random(options.seed)
    cards = []
    for name, quick in (("quick", True), ("slow", False)):
        (folder / name).mkdir()
        cards.append(f"engine.card_file={write_card(folder / name, quick=quick)}")
    quick_card, slow_card = cards
    reference = _reference(folder, (*WORDS, quick_card), IN_ONE_PROCESS, CELLS)
    parts = (
        ("at a write", WRITES, quick_card, IN_ONE_PROCESS, (), ()),
        ("in one process", ONE_PROCESS, slow_card, IN_ONE_PROCESS, ENDING_IN_ONE_PROCESS, SURVIVED),
        ("through Ray", RAY, slow_card, COMMAND, ENDING_THROUGH_RAY, SURVIVED_THROUGH_RAY),
    )
    for how, share, card, program, ending, survived in parts:
        wanted = count.kills + round(share * options.kills)
        while count.kills < wanted:
            many = min(options.per_sweep, wanted - count.kills)
            with SweepUnderTest(_new(folder), (*WORDS, card), program=program) as sweep:
                trial = KillTrial(sweep, reference, sweeps=1)
                if ending:
                    _strike(trial, _drawn(draw, ending, survived, many))
                else:
                    for _ in range(many):
                        trial.strike_at_write(draw.randint(1, LAST_AT_ONCE))
                count.add(how, trial.settle())


def _drawn(
    draw: random.Random, ending: Sequence[Kill], survived: Sequence[Kill], many: int
) -> list[Kill]:
    """Kills for one sweep; those that the driver survives fail a cell, so they are few."""
    few = min(many // 2, 2)
    kills = [*draw.choices(ending, k=many - few), *draw.choices(survived, k=few)]
    draw.shuffle(kills)
    return kills


def _strike(trial: KillTrial, kills: Sequence[Kill]) -> None:
    for planned in kills:
        verdict = trial.strike(planned)
        if not verdict.hit:
            if verdict.code in (0, 3):  # the sweep came to its end before, and in good order
                verdict.other.clear()
            return


def _real(folder: Path, count: Count, options: argparse.Namespace) -> None:
    words = (*WORDS_OF_VLLM, f"engine.python={options.python}")
    reference = _reference(folder, words, COMMAND, CELLS_OF_VLLM)
    while count.kills < options.kills:
        for kills in ON_VLLM:
            with SweepUnderTest(_new(folder), words, cells=CELLS_OF_VLLM, limit_s=VLLM_S) as sweep:
                trial = KillTrial(
                    sweep,
                    reference,
                    phases=PHASES_OF_VLLM,
                    exact=False,
                    notice_s=VLLM_NOTICE_S,
                    sweeps=1,
                )
                _strike(trial, kills[: options.kills - count.kills])
                count.add("real vLLM", trial.settle())
            if count.kills >= options.kills:
                return


def _reference(folder: Path, words: Sequence[str], program: Sequence[str], cells: int) -> Path:
    """The same sweep, never killed."""
    cwd = _new(folder)
    with SweepUnderTest(cwd, words, program=program, cells=cells, limit_s=VLLM_S) as sweep:
        sweep.start()
        ended = sweep.wait()
    if ended.code != 0:
        raise SystemExit(f"the sweep fails even when it is not killed: {ended.output}")
    return sweep.folder


def _new(folder: Path) -> Path:
    cwd = folder / f"{len(list(folder.iterdir()))}"
    cwd.mkdir()
    return cwd


if __name__ == "__main__":
    sys.exit(main())
