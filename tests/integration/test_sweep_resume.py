"""Going on with a sweep: damaged files, a changed engine, secrets, two writers at once."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import polars as pl
import pytest
import yaml
from running_sweep import (
    FIRST_HELD_LOADING,
    HELD_LOADING,
    PROGRAM,
    command,
    end_server,
    environment,
    held,
    kill_all,
    loading,
    marked,
    nothing_left,
    running,
)

QUICK = ("workload.tasks=[prose]",)
CANARIES = {
    "HF_TOKEN": "hf_canaryOfTheHub0123456789",
    "SOME_API_KEY": "sk-canary-of-an-api-0123456789",
    "DATABASE_URL": "postgres://user:canaryPassword0123456789@host/db",
}
SECRETS = ("canaryOfTheHub", "sk-canary-of-an-api", "canaryPassword")


def told(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *words], cwd=folder, env=environment(folder),
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    with running(folder, *QUICK) as sweep:
        output, _ = sweep.communicate(timeout=240)
        assert sweep.returncode == 0, output
    return folder


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def test_damaged_files_are_set_aside_and_their_cells_run_again(
    finished: Path, tmp_path: Path
) -> None:
    subprocess.run(["cp", "-a", finished / "s", finished / "card.yaml", tmp_path], check=True)
    before = pl.read_parquet(tmp_path / "s/trials.parquet")
    first, second = sorted(tmp_path.glob("s/attempts/*/1"))
    flip(first / "runs.parquet")
    empty(second / "outcome.json")
    # Readers see it, touch nothing and need no lock.
    state = json.loads(told(tmp_path, "status", "s", "--json").stdout)
    assert (state["state"], state["done"]) == ("interrupted", 0)
    assert not list(tmp_path.glob("s/attempts/*/*/*.damaged"))

    done = told(tmp_path, "resume", "s")
    assert done.returncode == 0, done.stdout + done.stderr
    assert sum("its cell runs again" in line for line in done.stdout.splitlines()) == 2
    assert f"{first.relative_to(tmp_path)}/runs.parquet" in done.stdout
    assert f"{second.relative_to(tmp_path)}/outcome.json" in done.stdout
    assert (first / "runs.parquet.damaged").exists()
    assert (second / "outcome.json.damaged").exists()
    after = pl.read_parquet(tmp_path / "s/trials.parquet").sort("cell_id", "attempt")
    assert after["status"].to_list() == ["interrupted", "measured"] * 2
    assert after.filter(pl.col("status") == "measured")["kv_tokens"].to_list() == (
        before.sort("cell_id")["kv_tokens"].to_list()
    )
    again = told(tmp_path, "resume", "s")
    assert "runs again" not in again.stdout
    assert "2 of them done already" in again.stdout


def test_a_changed_engine_is_refused_unless_it_is_allowed(finished: Path, tmp_path: Path) -> None:
    """An engine that calls itself another version, after one of the cells."""
    subprocess.run(["cp", "-a", finished / "s", tmp_path], check=True)
    first, second = sorted(tmp_path.glob("s/attempts/*/1"))
    subprocess.run(["rm", "-r", second.parent], check=True)
    manifest = tmp_path / "s/sweep.yaml"
    content = yaml.safe_load(manifest.read_text())
    content["identity"]["cell"]["engine"]["version"] = "0.0.1"
    manifest.write_text(yaml.safe_dump(content, sort_keys=False))
    kept = (first / "outcome.json").read_bytes()

    words = command(finished, *QUICK, out=str(tmp_path / "s"))[len(PROGRAM) :]
    for refused in (told(finished, *words), told(tmp_path, "resume", "s")):
        assert refused.returncode == 2
        (line,) = refused.stderr.splitlines()
        assert "engine.version is 0.0.1 there and " in line
        assert "--allow-changed" in line
    done = told(tmp_path, "resume", "--allow-changed", "s")
    assert done.returncode == 0, done.stderr
    trials = pl.read_parquet(tmp_path / "s/trials.parquet")
    changed = dict(trials.select("attempt", "changed").rows())
    assert trials["status"].to_list() == ["measured"] * 2
    assert trials["changed"].drop_nulls().to_list()[0].startswith("engine.version 0.0.1 -> ")
    assert trials["changed"].null_count() == 1
    assert len(changed) == 1
    assert (first / "outcome.json").read_bytes() == kept
    # It was allowed once: from now on it is one of the sweep's own.
    assert told(tmp_path, "resume", "s").returncode == 0


def test_a_second_writer_is_told_who_writes(tmp_path: Path) -> None:
    with running(tmp_path, *QUICK, "schedule.retries=1", faults=FIRST_HELD_LOADING) as sweep:
        held(tmp_path / "s")
        same = command(tmp_path, *QUICK, "schedule.retries=1")[len(PROGRAM) :]
        for words in (same, ["resume", "s"]):
            refused = told(tmp_path, *words)
            assert refused.returncode == 2
            (line,) = refused.stderr.splitlines()
            assert f"is being written by pid {sweep.pid} on {os.uname().nodename} since" in line
        state = json.loads(told(tmp_path, "status", "s", "--json").stdout)
        assert state["state"] == "running"
        assert told(tmp_path, "show", "s", "--json").returncode == 0
        end_server(tmp_path)  # as long as it waited, the sweep was being written
        output, _ = sweep.communicate(timeout=240)
    assert sweep.returncode == 0, output
    assert "Traceback" not in output


def holding(folder: Path, words: tuple[str, ...]) -> list[str]:
    """The files below a folder that hold one of the words."""
    found = []
    for parent, _, names in os.walk(folder):  # what goes away meanwhile is passed over
        for path in (Path(parent) / name for name in names):
            with suppress(OSError):
                content = path.read_bytes() if path.is_file() else b""
                found += [str(path) for word in words if word.encode() in content]
    return found


@pytest.mark.parametrize("moment", [loading, None])
def test_secrets_of_the_environment_reach_no_file(
    moment: Callable[[Path], None] | None, tmp_path: Path
) -> None:
    """Neither the sweep's folder nor Ray's own, not even when everything is killed."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    env = {**CANARIES, "TMPDIR": str(temporary)}
    faults = () if moment is None else HELD_LOADING
    with running(tmp_path, *QUICK, env=env, faults=faults) as sweep:
        if moment is None:
            output, _ = sweep.communicate(timeout=240)
            assert sweep.returncode == 0, output
        else:
            moment(tmp_path)
            assert holding(tmp_path, SECRETS) == []
            kill_all(marked(tmp_path))
            nothing_left(tmp_path)
        assert holding(tmp_path, SECRETS) == []
    descriptions = list(tmp_path.glob("s/attempts/*/*/attempt.json"))
    assert descriptions
    assert sys.executable in descriptions[0].read_text()


def test_a_reader_that_has_seen_enough_does_not_end_the_sweep(tmp_path: Path) -> None:
    with running(tmp_path, *QUICK) as sweep:
        assert sweep.stdout is not None
        assert sweep.stdout.readline().startswith("Starting 2 cells")
        sweep.stdout.close()
        assert sweep.wait(120) == 0
    assert pl.read_parquet(tmp_path / "s/trials.parquet")["status"].to_list() == ["measured"] * 2


def test_a_copy_of_a_running_sweep_does_not_end_its_launch(tmp_path: Path) -> None:
    with running(tmp_path, *QUICK, "schedule.retries=0") as sweep:
        loading(tmp_path)
        sweep.send_signal(signal.SIGSTOP)  # it alone writes there
        subprocess.run(["cp", "-a", tmp_path / "s", tmp_path / "copy"], check=True)
        sweep.send_signal(signal.SIGCONT)
        copied = told(tmp_path, "resume", "copy")
        output, _ = sweep.communicate(timeout=240)
    assert copied.returncode == 0, copied.stderr
    assert sweep.returncode == 0, output
    for folder in ("s", "copy"):
        trials = pl.read_parquet(tmp_path / folder / "trials.parquet")
        assert trials.filter(pl.col("status") == "measured").height == 2
        assert trials.filter(pl.col("status") == "failed").height == 0


def test_a_password_in_a_model_s_address_is_masked_to_the_end(tmp_path: Path) -> None:
    with running(tmp_path, *QUICK, "model.id='https://u:canaryPassword01@hf.co/x'") as sweep:
        output, _ = sweep.communicate(timeout=240)
    assert sweep.returncode == 0, output
    assert "To serve with these settings" in output
    assert holding(tmp_path / "s", ("canaryPassword01",)) == []
