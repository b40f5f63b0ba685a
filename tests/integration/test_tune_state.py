"""What Tune keeps of attempts that have ended."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import polars as pl
from running_sweep import PROGRAM, command, environment

# Runs the command line, and copies what Tune wrote before that folder is removed.
CODE = """
import shutil, sys
from pathlib import Path
from vllm_frontier.cli import main
from vllm_frontier.launch import folders  # Ray is not imported before its settings

remove, copied = folders.remove_tmp, Path(sys.argv.pop(1))

def keep(folder):
    for file in folder.rglob("tune/**/*"):
        if file.is_file():
            shutil.copy(file, copied / file.name)
    remove(folder)

folders.remove_tmp = keep
main()
"""


def test_tune_keeps_no_outcomes(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    words = command(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(kept), *words[len(PROGRAM) :]],
        cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=240,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    trials = pl.read_parquet(tmp_path / "s/trials.parquet")
    assert trials["status"].to_list() == ["measured", "measured"]
    assert trials["decode_tok_s"].null_count() == 0
    (state,) = kept.glob("experiment_state-*.json")
    told = json.loads(state.read_text())["trial_data"]
    assert len(told) == 2
    for trial, metadata in told:
        # Tune knows that it is done, and nothing of what it came to.
        assert '"done": true' in metadata
        assert "outcome" not in metadata
        for word in (b"Outcome", b"Sample"):  # what is no JSON is pickled
            assert word.hex() not in trial + metadata
        assert len(trial) + len(metadata) < 16_000
