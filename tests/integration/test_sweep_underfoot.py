"""What befalls a running sweep beside signals: its disk, its folder, a stopped worker."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from running_sweep import (
    FIRST_HELD_LOADING,
    HELD_LOADING,
    PATIENCE_S,
    PROGRAM,
    Faults,
    end_server,
    environment,
    held,
    launched,
    loading,
    nothing_left,
    running,
    until,
)

# The second launch of a sweep: the cell with and the one without graphs have one each.
GRAPHS_OF_THE_SECOND = False
SECOND_HELD_LOADING: Faults = (
    {"at": "load", "kind": "hang", "times": 1, "when": {"graphs": GRAPHS_OF_THE_SECOND}},
)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 600 KiB, on which a sweep of two cells has room."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", place], check=False
    )
    if mounted.returncode != 0:
        pytest.skip("only root may mount a small disk")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def outcomes(folder: Path) -> dict[Path, bytes]:
    return {
        path: path.read_bytes()
        for path in sorted(folder.glob("attempts/*/*/*"))
        if (path.parent / "outcome.json").exists()
    }


def until_one_is_done(folder: Path) -> None:
    """And the other launch waits."""
    until(lambda: list(folder.glob("attempts/*/*/outcome.json")))
    held(folder)


def ends(sweep: subprocess.Popen[str], folder: Path, *, words: str) -> None:
    """Once an attempt has ended the sweep does: one line says why, and nothing runs any more."""
    end_server(folder)
    output, _ = sweep.communicate(timeout=PATIENCE_S)
    assert sweep.returncode == 2, output
    told = [line for line in output.splitlines() if line.startswith("vllm-frontier: ")]
    assert len(told) == 1
    assert words in told[0]
    assert "Traceback" not in output
    assert launched(folder) == []
    nothing_left(folder)


def worker_of(folder: Path) -> int:
    """The process of Ray's that runs the attempt under way."""
    (description,) = folder.glob("s/attempts/*/1/attempt.json")
    return int(json.loads(description.read_text())["worker"]["pid"])


def told(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *words], cwd=folder, env=environment(folder),
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


def goes_on(folder: Path, before: dict[Path, bytes]) -> None:
    """What was done is as it was, and the rest is done by `resume`."""
    assert {path: path.read_bytes() for path in before} == before
    out = next(iter(before)).parents[3] if before else folder / "s"
    done = told(folder, "resume", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    trials = pl.read_parquet(out / "trials.parquet")
    finished = trials.filter(pl.col("status") == "measured")
    assert finished.height == 2
    assert {path: path.read_bytes() for path in before} == before


def test_a_disk_that_becomes_full_ends_the_sweep(disk: Path, tmp_path: Path) -> None:
    out = disk / "s"
    with running(tmp_path, out=str(out), faults=SECOND_HELD_LOADING) as sweep:
        until_one_is_done(out)
        before = outcomes(out)
        filler = disk / "filler"
        with pytest.raises(OSError, match="No space left"):
            filler.write_bytes(bytes(10**6))
        ends(sweep, tmp_path, words="cannot be written: No space left on device")
    filler.unlink()
    goes_on(tmp_path, before)


def test_a_disk_that_becomes_read_only_ends_the_sweep(disk: Path, tmp_path: Path) -> None:
    out = disk / "s"
    with running(tmp_path, out=str(out), faults=SECOND_HELD_LOADING) as sweep:
        until_one_is_done(out)
        before = outcomes(out)
        # The server's log is open, so the disk itself cannot become so; a mount above it can.
        subprocess.run(["mount", "--bind", disk, disk], check=True)
        try:
            subprocess.run(["mount", "-o", "remount,bind,ro", disk], check=True)
            ends(sweep, tmp_path, words="cannot be written: Read-only file system")
            shown = told(tmp_path, "status", str(out))
            assert shown.returncode == 0, shown.stderr
            assert "interrupted, 1 of 2 cells done" in shown.stdout
            refused = told(tmp_path, "resume", str(out))
            assert refused.returncode == 2
            assert "Read-only file system" in refused.stderr
            assert len(refused.stderr.splitlines()) == 1
        finally:
            subprocess.run(["umount", "-l", disk], check=True)
    goes_on(tmp_path, before)


def test_a_folder_that_is_deleted_underfoot_ends_the_sweep(tmp_path: Path) -> None:
    with running(tmp_path, faults=HELD_LOADING) as sweep:
        loading(tmp_path)
        (tmp_path / "s").rename(tmp_path / "gone")
        ends(sweep, tmp_path, words="s is gone: it was removed while it was written")
    assert not (tmp_path / "s").exists()


def test_a_worker_of_ray_that_is_stopped_gets_an_outcome(tmp_path: Path) -> None:
    with running(tmp_path, "schedule.retries=1", faults=FIRST_HELD_LOADING) as sweep:
        held(tmp_path / "s")
        worker = worker_of(tmp_path)
        os.kill(worker, signal.SIGSTOP)
        output, _ = sweep.communicate(timeout=240)
    assert sweep.returncode == 0, output
    trials = pl.read_parquet(tmp_path / "s/trials.parquet").sort("started_at")
    assert trials["status"].to_list() == ["failed", "measured", "measured"]
    first = trials.rows(named=True)[0]
    assert (first["failure_class"], first["phase"]) == ("unknown", "spawn")
    assert "it was stopped for 10 s" in first["evidence"]
    assert first["wall_s"] > 9
    nothing_left(tmp_path)


def test_a_worker_of_ray_that_is_killed_leaves_nothing_and_its_cell_is_tried_again(
    tmp_path: Path,
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    env = {"TMPDIR": str(temporary)}
    with running(tmp_path, env=env, faults=FIRST_HELD_LOADING) as sweep:
        held(tmp_path / "s")
        worker = worker_of(tmp_path)
        # Supervisor, API server, EngineCore and worker.
        mine = {process.pid for process in launched(tmp_path)}
        assert len(mine) == 4
        os.kill(worker, signal.SIGKILL)
        until(lambda: not mine & {process.pid for process in launched(tmp_path)})
        output, _ = sweep.communicate(timeout=240)
    assert sweep.returncode == 0, output
    assert "raylet" not in output
    trials = pl.read_parquet(tmp_path / "s/trials.parquet").sort("started_at")
    assert trials["status"].to_list() == ["failed", "measured", "measured"]
    assert trials["evidence"][0].startswith("the process that ran this attempt broke: ")
    assert trials["log_tail"][0]
    assert list(temporary.glob("vf-*")) == []
