"""What a user gets who installs the wheel, far from the repository."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    wheel = next(folder.glob("*.whl"))
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


def run(installed: Path, cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    # Without `site`'s path files the editable install of this checkout is not seen.
    code = (
        "import sys, vllm_frontier, vllm_frontier.cli as cli\n"
        f"assert vllm_frontier.__file__.startswith({str(installed)!r}), vllm_frontier.__file__\n"
        "cli.main()\n"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=cwd, env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


def test_ready_sweeps_models_and_tasks_travel_along(installed: Path, tmp_path: Path) -> None:
    done = run(installed, tmp_path, "plan", "demo-cpu", "--json")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["n_cells"] == 36
    launched = [cell["order"] for cell in plan["cells"] if cell["launch"]]
    assert launched[0] == 1
    assert launched == sorted(set(launched))
    model = installed / "vllm_frontier/models/demo-mtp"
    assert (model / "model.safetensors").stat().st_size < 8_000_000
    assert (model / "tokenizer.json").is_file()


def test_a_sweep_file_of_ones_own_works(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "defaults: [base, override model: demo-mtp, override card: cpu-demo, "
        "override engine: vllm-cpu, override grid: demo, _self_]\n"
        "grid: {depth: [0, 2], context: [8192]}\n"
    )
    done = run(installed, tmp_path, "plan", "./mine.yaml", "--json", "workload.repeats=1")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert (plan["sweep"], plan["axes"]["depth"]) == ("mine", [0, 2])


def test_simulated_cards_travel_along(installed: Path, tmp_path: Path) -> None:
    done = run(installed, tmp_path, "plan", "rtx5090-qwen3.8-27b-nvfp4", "engine=simulated")
    assert done.returncode == 0, done.stderr
    assert "Simulated RTX 5090" in done.stdout


def test_a_report_travels_along(installed: Path, tmp_path: Path) -> None:
    sys.path.insert(0, str(ROOT / "tests/unit"))
    import golden_sweeps as golden

    done = run(installed, tmp_path, "report", str(golden.one_cell(tmp_path / "s")))
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "s/report.html").read_text()
    assert "<style>" in page
    assert ".panel svg" in page
    assert (tmp_path / "s/plots/fits.png").read_bytes().startswith(b"\x89PNG")
