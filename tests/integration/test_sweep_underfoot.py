"""What befalls a running sweep beside signals: its disk, its folder, a stopped worker."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from running_sweep import command, environment, launched, loading, nothing_left, running, until

ENDS_IN_S = 15.0


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
    deadline = time.monotonic() + 60
    while not list(folder.glob("attempts/*/*/outcome.json")):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def ends(sweep: subprocess.Popen[str], folder: Path, *, words: str) -> None:
    """The sweep ends by itself: with one line that says why, and nothing running."""
    began = time.monotonic()
    output, _ = sweep.communicate(timeout=60)
    assert time.monotonic() - began < ENDS_IN_S
    assert sweep.returncode == 2, output
    told = [line for line in output.splitlines() if line.startswith("vllm-frontier: ")]
    assert len(told) == 1
    assert words in told[0]
    assert "Traceback" not in output
    assert launched(folder) == []
    nothing_left(folder, 5)


def worker_of(folder: Path) -> int:
    """The process of Ray's that runs the attempt under way."""
    (description,) = folder.glob("s/attempts/*/1/attempt.json")
    return int(json.loads(description.read_text())["worker"]["pid"])


def told(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command(folder)[:3], *words], cwd=folder, env=environment(folder),
        capture_output=True, text=True, timeout=120, check=False,
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
    with running(tmp_path, out=str(out)) as sweep:
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
    with running(tmp_path, out=str(out)) as sweep:
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
    with running(tmp_path) as sweep:
        loading(tmp_path)
        (tmp_path / "s").rename(tmp_path / "gone")
        ends(sweep, tmp_path, words="s is gone: it was removed while it was written")
    assert not (tmp_path / "s").exists()


def test_a_worker_of_ray_that_is_stopped_gets_an_outcome(tmp_path: Path) -> None:
    with running(tmp_path, "schedule.retries=1") as sweep:
        loading(tmp_path)
        worker = worker_of(tmp_path)
        os.kill(worker, signal.SIGSTOP)
        output, _ = sweep.communicate(timeout=120)
    assert sweep.returncode == 0, output
    trials = pl.read_parquet(tmp_path / "s/trials.parquet").sort("started_at")
    assert trials["status"].to_list() == ["failed", "measured", "measured"]
    first = trials.rows(named=True)[0]
    assert (first["failure_class"], first["phase"]) == ("unknown", "spawn")
    assert "it was stopped for 10 s" in first["evidence"]
    assert 9 < first["wall_s"] < 30
    nothing_left(tmp_path, 5)


def test_a_worker_of_ray_that_is_killed_leaves_nothing_and_its_cell_is_tried_again(
    tmp_path: Path,
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    with running(tmp_path, env={"TMPDIR": str(temporary)}) as sweep:
        loading(tmp_path)
        worker = worker_of(tmp_path)
        # Supervisor, API server, EngineCore and worker.
        until(lambda: len(launched(tmp_path)) == 4, 20)
        mine = {process.pid for process in launched(tmp_path)}
        os.kill(worker, signal.SIGKILL)
        until(lambda: not mine & {process.pid for process in launched(tmp_path)}, 2.0)
        output, _ = sweep.communicate(timeout=120)
    assert sweep.returncode == 0, output
    assert "raylet" not in output
    trials = pl.read_parquet(tmp_path / "s/trials.parquet").sort("started_at")
    assert trials["status"].to_list() == ["failed", "measured", "measured"]
    assert trials["evidence"][0].startswith("the process that ran this attempt broke: ")
    assert trials["log_tail"][0]
    assert list(temporary.glob("vf-*")) == []
