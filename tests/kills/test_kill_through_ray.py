"""The real command under Ray, killed at its tenderest moments, resumed, and compared.

The kills of one test meet one sweep, one after another: after each the sweep is resumed, so that
the next one meets a sweep which has been killed before.
"""

import signal
from pathlib import Path

import pytest
from kill_trial import Kill, KillTrial
from sweep_under_test import NewSweep

pytestmark = pytest.mark.timeout(1800)


def test_driver(new_sweep: NewSweep, card: Path, undisturbed: Path) -> None:
    trial = KillTrial(new_sweep(card), undisturbed / "s")
    trial.strike(Kill(("driver",), "begin", delay_s=1.5))
    for phase in ("spawn", "load", "capture", "fill", "measure", "stop", "between", "tables"):
        trial.strike(Kill(("driver",), phase))
    trial.assert_all_is_well()


def test_processes_of_a_launch_and_its_worker(
    new_sweep: NewSweep, card: Path, undisturbed: Path
) -> None:
    """The driver lives on, and tries each cell once more by itself."""
    trial = KillTrial(new_sweep(card), undisturbed / "s")
    # No cell is struck twice, and the last of them is one that works.
    trial.strike(Kill(("api server",), "load"))
    trial.strike(Kill(("supervisor",), "measure"))
    trial.strike(Kill(("ray worker",), "profile"))
    trial.strike(Kill(("engine core",), "measure"))
    trial.assert_all_is_well()


def test_ray_itself(new_sweep: NewSweep, card: Path, undisturbed: Path) -> None:
    trial = KillTrial(new_sweep(card), undisturbed / "s")
    for role, phase in (("raylet", "load"), ("gcs_server", "measure")):
        trial.strike(Kill((role,), phase))
    trial.assert_all_is_well()


def test_several_at_once_and_gentler_signals(
    new_sweep: NewSweep, card: Path, undisturbed: Path
) -> None:
    trial = KillTrial(new_sweep(card), undisturbed / "s")
    trial.strike(Kill(("driver",), "measure", signal.SIGTERM))
    trial.strike(Kill(("driver", "supervisor"), "capture"))
    trial.strike(Kill(("driver", "ray worker", "supervisor"), "measure"))
    trial.strike(Kill(("driver",), "load", signal.SIGINT))
    trial.assert_all_is_well()
