"""The same attempts and the same files without Ray, so that many kills take little time.

Driver and worker are one process here. The kills of one test meet one sweep, one after another.
"""

import random
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from kill_trial import Kill, KillTrial
from sweep_under_test import IN_ONE_PROCESS, NewSweep

pytestmark = pytest.mark.timeout(1800)

SEED = 20
WHOLE = ("driver",)
ORPHANS = ("driver", "supervisor")


def test_the_sweep_is_watched_from_its_first_write_to_its_last(undisturbed: Path) -> None:
    """What the kills below choose from: a step that is not listed is never hit."""
    writes = (undisturbed / "writes").read_text().splitlines()
    assert writes[0].startswith("mkdir ")
    assert any("boundaries.parquet" in line for line in writes[-20:])
    for what in ("open", "write", "fsync", "rename", "remove"):
        assert any(line.startswith(f"{what} ") for line in writes), what
    assert len(writes) > 150


@pytest.mark.parametrize("seed", range(SEED, SEED + 2))
def test_at_any_write(new_sweep: NewSweep, quick_card: Path, undisturbed: Path, seed: int) -> None:
    """Every process of the sweep ends a few steps later; some come far enough to finish a cell."""
    draw = random.Random(seed)
    trial = KillTrial(new_sweep(quick_card, program=IN_ONE_PROCESS), undisturbed / "s")
    for _ in range(10):
        trial.strike_at_write(draw.randint(1, 70))
    assert sum(verdict.hit for verdict in trial.verdicts) >= 9
    trial.assert_all_is_well()


def test_while_the_tables_are_written(
    new_sweep: NewSweep, quick_card: Path, undisturbed: Path
) -> None:
    trial = KillTrial(new_sweep(quick_card, program=IN_ONE_PROCESS), undisturbed / "s")
    number = len((undisturbed / "writes").read_text().splitlines()) - 20
    hit = []
    while (verdict := trial.strike_at_write(number)).hit:
        hit.append(verdict.phase)
        number = 12 + 3 * len(hit)  # nothing is left to launch from the second time on
    assert {each.partition(" ")[2] for each in hit} >= {".trials.parquet.tmp", ".runs.parquet.tmp"}
    trial.assert_all_is_well()


@pytest.mark.parametrize(
    ("roles", "phases"),
    [
        (WHOLE, ("open", "spawn", "load", "capture", "fill", "measure", "record")),
        (ORPHANS, ("load", "measure")),
    ],
    ids=["driver", "driver and supervisor"],
)
def test_driver_in_every_phase(
    new_sweep: NewSweep,
    card: Path,
    undisturbed: Path,
    roles: tuple[str, ...],
    phases: Sequence[str],
) -> None:
    trial = KillTrial(new_sweep(card, program=IN_ONE_PROCESS), undisturbed / "s")
    for phase in phases:
        trial.strike(Kill(roles, phase))
    trial.assert_all_is_well()


def test_signals_that_ask(new_sweep: NewSweep, card: Path, undisturbed: Path) -> None:
    trial = KillTrial(new_sweep(card, program=IN_ONE_PROCESS), undisturbed / "s")
    for phase, number in (
        ("fill", signal.SIGTERM),
        ("measure", signal.SIGINT),
        ("tables", signal.SIGTERM),
    ):
        trial.strike(Kill(WHOLE, phase, number))
    trial.assert_all_is_well()


@pytest.mark.parametrize(
    "kills",
    [
        (
            *(("worker", "load"), ("supervisor", "measure"), ("engine core", "fill")),
            *(("api server", "profile"), ("api server", "measure")),
        ),
        (
            *(("supervisor", "load"), ("worker", "measure"), ("api server", "capture")),
            *(("engine core", "profile"), ("engine core", "measure")),
        ),
    ],
    ids=["one", "two"],
)
def test_processes_of_a_launch(
    new_sweep: NewSweep, card: Path, undisturbed: Path, kills: Sequence[tuple[str, str]]
) -> None:
    """A cell whose server was killed counts as failed, and is tried once more.

    No cell is struck twice; the first, the fourth and the fifth do not come to serve.
    """
    trial = KillTrial(new_sweep(card, program=IN_ONE_PROCESS), undisturbed / "s")
    for role, phase in kills:
        trial.strike(Kill((role,), phase))
    trial.assert_all_is_well()
