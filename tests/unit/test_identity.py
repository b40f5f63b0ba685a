import dataclasses
import shutil
from pathlib import Path

from vllm_frontier.config import compose_sweep
from vllm_frontier.identity import fingerprint, identify
from vllm_frontier.shipped import shipped
from vllm_frontier.spec import SweepSpec

CARD = shipped("conf") / "simulated/tiny-8gib.yaml"


def spec(*overrides: str) -> SweepSpec:
    return compose_sweep("demo-cpu", overrides).spec


def test_what_decides_results_decides_the_identity() -> None:
    cell = spec().grid.cells()[0]
    base = identify(spec(), "0.32.0")
    others = [
        identify(spec(), "0.33.0"),
        identify(spec("engine.args.max_num_seqs=2"), "0.32.0"),
        identify(spec("engine.env.OMP_NUM_THREADS=1"), "0.32.0"),
        identify(spec("card.memory_gib=0.4"), "0.32.0"),
        identify(spec("model.id=some/other"), "0.32.0"),
        identify(spec("model.speculation.method=ngram"), "0.32.0"),
    ]
    assert len({base.cell_id(cell), *(other.cell_id(cell) for other in others)}) == 7


def test_a_changed_task_is_another_workload_but_the_same_cell() -> None:
    cell = spec().grid.cells()[0]
    base, other = identify(spec(), "1"), identify(spec("workload.max_tokens=64"), "1")
    assert base.cell_id(cell) == other.cell_id(cell)
    assert base.workload != other.workload


def test_grid_budget_and_schedule_decide_nothing() -> None:
    base = identify(spec(), "1")
    assert identify(spec("grid.depth=[0]", "search.max_launches=3"), "1") == base
    assert identify(spec("schedule.retries=4"), "1") == base


def test_how_often_the_same_is_measured_decides_nothing() -> None:
    base = identify(spec(), "1")
    assert identify(spec("workload.replicates=3", "workload.reference=false"), "1") == base
    assert identify(spec("workload.precision=0.02", "workload.score=false"), "1") == base
    assert identify(spec("workload.repeats=5"), "1") != base  # other prompts


def test_a_model_folder_may_move_but_not_change(tmp_path: Path) -> None:
    model = Path(spec().model.id)
    moved = tmp_path / "elsewhere" / model.name
    shutil.copytree(model, moved)
    cell = spec().grid.cells()[0]
    moved_spec = spec(f"model.id={moved}")
    assert identify(spec(), "1").cell_id(cell) == identify(moved_spec, "1").cell_id(cell)
    weights = moved / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert fingerprint(moved) != fingerprint(model)


def test_a_simulated_card_counts_by_its_figures_not_by_its_path_or_faults(tmp_path: Path) -> None:
    card = tmp_path / "copy.yaml"
    base = spec("engine=simulated", "engine.card_file=tiny-8gib")

    def same(text: str) -> bool:
        card.write_text(text)
        changed = dataclasses.replace(
            base, engine=dataclasses.replace(base.engine, card_file=str(card))
        )
        return identify(changed, "1") == identify(base, "1")

    text = CARD.read_text()
    assert same(text)
    assert same(text + "\nfaults:\n  - {when: {depth: 1}, at: load, kind: crash, times: 1}\n")
    assert "total_gib: " in text
    assert not same(text.replace("total_gib: ", "total_gib: 1"))
