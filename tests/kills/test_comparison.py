"""What the kills are judged by finds what it is to find, and nothing else."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from marked_processes import MARK, MarkedProcesses
from sweep_under_test import NewSweep
from table_comparison import differences


@pytest.fixture
def copy(undisturbed: Path, tmp_path: Path) -> Path:
    """The sweep that was never killed, to be changed."""
    return Path(shutil.copytree(undisturbed / "s", tmp_path / "s"))


def change(folder: Path, table: str, by: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
    file = folder / f"{table}.parquet"
    by(pl.read_parquet(file)).write_parquet(file)


def test_the_same_tables_are_the_same(copy: Path, undisturbed: Path) -> None:
    assert differences(copy, undisturbed / "s") == []


@pytest.mark.parametrize(
    ("table", "column"),
    [("runs", "decode_tok_s"), ("frontier", "prefill_tok_s"), ("trials", "kv_available_gib")],
)
def test_the_last_digit_counts(copy: Path, undisturbed: Path, table: str, column: str) -> None:
    change(copy, table, lambda content: content.with_columns(pl.col(column) * (1 + 1e-15)))
    told = differences(copy, undisturbed / "s")
    assert told
    assert all(line.startswith(f"{table} ") and f": {column} is " in line for line in told)


def test_a_run_too_few_is_told_with_its_key(copy: Path, undisturbed: Path) -> None:
    change(copy, "runs", lambda content: content.slice(1))
    assert "instead of 27; missing ['" in differences(copy, undisturbed / "s")[0]


def test_a_score_too_few_is_told_unless_the_server_was_killed(
    copy: Path, undisturbed: Path
) -> None:
    change(copy, "runs", lambda content: content.filter(pl.col("kind") != "probe"))
    told = differences(copy, undisturbed / "s")
    assert told[0].startswith("runs: 15 rows instead of 27; missing ['")
    assert " probe " in told[0]
    assert differences(copy, undisturbed / "s", scores=False) == []


def test_a_boundary_on_the_other_side_is_told(copy: Path, undisturbed: Path) -> None:
    change(copy, "boundaries", lambda content: content.with_columns(max_context_works=0))
    told = differences(copy, undisturbed / "s")
    assert len(told) == 3
    assert "max_context_works is 0 instead of 8192" in told[0]


def test_what_a_kill_leaves_behind_is_no_difference(copy: Path, undisturbed: Path) -> None:
    def again(content: pl.DataFrame) -> pl.DataFrame:
        """One attempt more at every cell, and the one before was interrupted or failed."""
        lost = content.with_columns(status=pl.lit("interrupted"), failure_class=pl.lit(None))
        return pl.concat([lost.cast(dict(content.schema)), later(content)])

    def later(content: pl.DataFrame) -> pl.DataFrame:
        return content.with_columns(
            pl.col("attempt") + 1, pl.col("started_at") + pl.duration(days=1)
        )

    change(copy, "trials", again)
    change(copy, "runs", later)
    assert differences(copy, undisturbed / "s") == []


def test_a_cell_that_is_launched_again_is_told(
    new_sweep: NewSweep, quick_card: Path, undisturbed: Path
) -> None:
    sweep = new_sweep(quick_card)
    shutil.copytree(undisturbed / "s", sweep.folder)
    finished = sweep.finished()
    assert len(finished) == 6
    assert set(finished.values()) == {1}
    assert sweep.launched_again(finished) == []
    cell = min(finished)
    (sweep.folder / "attempts" / cell / "2").mkdir()
    (told,) = sweep.launched_again(finished)
    assert told.startswith(f"{cell} had its outcome from attempt 1")


def test_processes_are_found_in_whatever_session_and_without_their_mark(tmp_path: Path) -> None:
    """A child of a marked process that cleared its environment belongs to the sweep too."""
    code = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen(['sleep', '60'], env={}, start_new_session=True)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    name = tmp_path.name
    parent = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, MARK: name}, stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    child = json.loads(parent.stdout.readline())
    found = MarkedProcesses(name)
    assert [each.pid for each in found.alive()] == sorted([parent.pid, child])
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert [each.pid for each in found.alive()] == [child]
    os.kill(child, 9)
