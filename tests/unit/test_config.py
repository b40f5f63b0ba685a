"""Each mistake a user can make in a configuration, with the line that it gets."""

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from vllm_frontier.config import compose_sweep, ready_sweeps, spec_from_document
from vllm_frontier.engine.registry import create_engine
from vllm_frontier.errors import ConfigError
from vllm_frontier.grid import Cell
from vllm_frontier.spec import SearchSpec

Write = Callable[[str, str], str]

MISTAKES = [
    (["workload.repets=3"], "unknown key 'workload.repets': did you mean 'workload.repeats'?"),
    (["modle=demo-mtp"], "unknown key 'modle': did you mean 'model'?"),
    (["repeats=3"], "unknown key 'repeats': did you mean 'workload.repeats'?"),
    (["workload.repeats=abc"], "workload.repeats: 'abc' is not a whole number"),
    (["grid.depth=[1.5]"], "grid.depth[0]: '1.5' is not a whole number"),
    (["grid.depth=3"], "grid.depth: must be a list, such as [1,2]"),
    (["grid.depth=1,2"], "'grid.depth=1,2' gives several values without brackets: "
                         "write grid.depth=[...]"),
    (["grid.depth=[]"], "grid.depth is empty: give at least one value, such as grid.depth=[...]"),
    (["grid.depth=[1,1]"], "grid.depth has the value 1 twice: remove one"),
    (["grid.utilization=[0.9,0.90]"], "grid.utilization has the value 0.9 twice: remove one"),
    (["grid.depth=[-1]"],
     "grid.depth has -1, but must be 0 (no speculation) or more tokens a step"),
    (["grid.utilization=[1.2]"],
     "grid.utilization has 1.2, but must be a share above 0 and at most 1"),
    (["grid.utilization=[0]"], "grid.utilization has 0, but must be a share above 0 and at most 1"),
    (["grid.context=[0]"], "grid.context has 0, but must be a number of tokens above 0"),
    (["grid.extra.kv_cache_dtype=[]"], "grid.extra.kv_cache_dtype is empty: give at least one "
                                       "value, such as grid.extra.kv_cache_dtype=[...]"),
    (["grid.extra.depth=[1]"], "grid.extra.depth is a built-in axis: set grid.depth instead"),
    (["grid.extra.max_model_len=[1]"],
     "grid.extra.max_model_len cannot be set: set grid.context instead"),
    (["engine.args.port=80"],
     "engine.args.port cannot be set: it is chosen for every launch"),
    (["grid.exclude=[{deep: 3}]"], "grid.exclude[0] names the axis 'deep', which the grid does "
                                   "not have: it has context, depth, graphs, utilization"),
    (["grid.exclude=[{}]"],
     "grid.exclude[0] is empty and would exclude every cell: name an axis and a value"),
    (["grid.exclude=[{depth: [0,1,3]}]"],
     "grid.exclude leaves no cell: remove or narrow a rule"),
    (["grid.exclude=[{depth: deep}]"],
     "grid.exclude[0].depth must be a number or a list of numbers, not 'deep'"),
    (["workload.tasks=[poetry]"], "unknown task 'poetry': give the path of a YAML file or one of "),
    (["workload.repeats=0"], "workload.repeats is 0, but must be 1 or more"),
    (["workload.repeats_max=0"], "workload.repeats_max is 0, but must be 1 or more"),
    (["workload.temperature=101"], "workload.temperature is 101, but must be at most 100"),
    (["workload.max_tokens=1"], "workload.max_tokens is 1, but must be 2 or more"),
    (["workload.repeats=1001"], "workload.repeats is 1001, but must be at most 1000"),
    (["workload.replicates=0"], "workload.replicates is 0, but must be 1 or more"),
    (["workload.replicates=1.5"], "workload.replicates: '1.5' is not a whole number"),
    (["workload.precision=0"], "workload.precision is 0, but must be above 0"),
    (["workload.precision=2"], "workload.precision is 2, but must be at most 1"),
    (["workload.precision=0.02", "workload.repeats_max=2"],
     "workload.repeats_max is 2, but at least workload.repeats (3) are measured"),
    (["workload.refernce=false"],
     "unknown key 'workload.refernce': did you mean 'workload.reference'?"),
    (["schedule.retries=-1"], "schedule.retries is -1, but must be 0 or more"),
    (["search.max_hours=0"], "search.max_hours is 0, but must be above 0"),
    (["search=best"], "there is no search 'best': there are boundary, exhaustive"),
    (["search=exhaustiv"], "there is no search 'exhaustiv': did you mean 'exhaustive'? there are "),
    (["search.audit=-1"], "search.audit is -1, but must be 0 or more"),
    (["search.audit=some"], "search.audit: 'some' is not a whole number"),
    (["search.seed=-1"], "search.seed is -1, but must be 0 or more"),
    (["search.max_launches=0"], "search.max_launches is 0, but must be 1 or more"),
    (["search.verify=nonsense"],
     "search.verify is 'nonsense', but must be one of all, boundaries, frontier"),
    (["search.measure=some"],
     "search.measure is 'some', but must be one of frontier, boundaries, all"),
    (["search.strategy=best"],
     "search.strategy is 'best', but must be one of exhaustive, boundary"),
    (["search.verfy=all"], "unknown key 'search.verfy': did you mean 'search.verify'?"),
    (["model=demo"], "there is no model 'demo': did you mean 'demo-mtp'? there are "),
    (["engine=vllm"], "engine=vllm needs a card of kind nvidia, not cpu: "
                      "choose another card=... or engine=..."),
    (["card=auto"], "card=auto needs an NVIDIA card here: name one, such as card=rtx5090"),
    (["model.speculation.method=eagle3"], "model.speculation.model is not set: the method eagle3 "
                                          "needs a drafter, give its folder or hub id"),
    (["model.speculation.method=magic"], "model.speculation.method is 'magic', but must be one of "
                                         "mtp, ngram, eagle3, draft_model"),
    (["engine.env.HF_TOKEN=abc"], "engine.env.HF_TOKEN would be written to disk"),
    (["engine.args.hf_token=abc"], "engine.args.hf_token would be written to disk"),
    (["engine.command='docker run -e HF_TOKEN=abc {args}'"], "engine.command holds a secret"),
    (["engine.command='docker run -eHF_TOKEN=abc {args}'"], "engine.command holds a secret"),
    (["grid.exclude=[3]"], "grid.exclude must be a list of rules, such as grid.exclude=[{"),
    (["grid.exclude={depth: 3}"], "grid.exclude must be a list of rules, such as grid.exclude=[{"),
    (["grid.exclude=[{context: nan}]"], "grid.exclude.context has nan, but must be a finite"),
    (["grid.context=[8192,99999999999999999999999]"],
     "grid.context has a whole number that does not fit into 64 bits"),
    (["grid.context=[8192,9999999999]"],
     "grid.context has 9999999999, but must be at most 2147483648"),
    (["grid.context={a: 1}"], "grid.context: must be a list, such as [1,2]"),
    (["grid.context=[" + "9" * 5000 + "]"],
     "cannot read the override of grid.context: a number in it is too large"),
    (["grid.depth=[2000]"], "grid.depth has 2000, but must be at most 1024"),
    (["grid.utilization=[nan]"], "grid.utilization has nan, but must be a finite number"),
    (["grid.extra.a=[1,inf]"], "grid.extra.a has inf, but must be a finite number"),
    (["grid.extra.a=[1,true]"],
     "grid.extra.a has 1 and true, which are the same value: remove one"),
    (["grid.extra.a=[0,false]"],
     "grid.extra.a has 0 and false, which are the same value: remove one"),
    (["grid.extra.a=[1,1.0]"], "grid.extra.a has the value 1 twice: remove one"),
    (["grid.extra.a=[1,'1']"], "grid.extra.a has the value 1 twice: remove one"),
    (["grid.extra={a: 1}"], "grid.extra.a: must be a list, such as [1,2]"),
    (["grid.extra=[1]"], "grid.extra: must be a mapping of keys to values"),
    (["engine.args.a=-99999999999999999999"],
     "engine.args.a has a whole number that does not fit into 64 bits"),
    (["engine.args.a=" + "[" * 3000 + "]" * 3000],
     "cannot read the override of engine.args.a: it is nested too deeply"),
    (["engine.ready_timeout_s=1e300"],
     "engine.ready_timeout_s is 1e+300, but must be at most 1e+09"),
    (["search.seed=99999999999999999999"],
     "search.seed has a whole number that does not fit into 64 bits"),
    (["search.max_hours=inf"], "search.max_hours has inf, but must be a finite number"),
    (["search.max_hours=" + "9" * 400], ""),
    (["search.verify=null"], "search.verify cannot be null: leave it out, or give a value such "
                             "as search.verify=boundaries"),
    (["grid.extra=null"],
     "grid.extra cannot be null: leave it out, or give a value such as grid.extra={}"),
    (["~search.max_hours"],
     "~search.max_hours cannot be taken out of a sweep: set search.max_hours=null instead"),
    (["~grid.depth"], "~grid.depth cannot be taken out of a sweep: set grid.depth=[...] instead"),
    (["~search"], "~search cannot be taken out of a sweep: choose another with search=NAME"),
    (["~engine.args"], "~engine.args cannot be taken out of a sweep: take out what is in it, as in "
                       "~engine.args.NAME"),
    (["model.id='~no-such-user-0'"], "model.id is ~no-such-user-0, which cannot be used: "),
    (["model.id=" + "n" * 300], f"model.id is {'n' * 60}..., which cannot be used: File name too"),
    (["engine.python='~no-such-user-0/python'"], "engine.python is ~no-such-user-0/python, which "),
    (["repeats"], "cannot read 'repeats': overrides are written KEY=VALUE"),
    (["grid.depth=[1"], "cannot read the override 'grid.depth=[1'"),
    (["workload={repeats: 1}"],
     "workload=NAME chooses a file of conf/workload; single keys are workload.KEY"),
    (["name=" + "n" * 300], "name has 300 letters, but at most 200 can be"),
    (["model.name='a\nb'"], "model.name is 'a\\nb', but must be a text of one line"),
    (["name=a/b"], "name is 'a/b', but must be a plain folder name"),
]  # fmt: skip


@pytest.mark.parametrize(("overrides", "line"), MISTAKES, ids=lambda value: str(value)[:40])
def test_a_mistake_gets_one_line(overrides: list[str], line: str) -> None:
    with pytest.raises(ConfigError) as told:
        compose_sweep("demo-cpu", overrides)
    assert str(told.value).startswith(line)
    assert "\n" not in str(told.value)


def test_further_axes_may_be_given_at_once_and_arguments_taken_out() -> None:
    overrides = ["grid.extra={kv_cache_dtype: [auto,fp8]}", "~engine.args.max_num_seqs"]
    spec = compose_sweep("demo-cpu", overrides).spec
    assert [(axis.name, axis.values) for axis in spec.grid.extra] == [
        ("kv_cache_dtype", ("auto", "fp8"))
    ]
    assert "max_num_seqs" not in spec.engine.args


def test_a_name_that_no_sweep_file_can_have() -> None:
    with pytest.raises(ConfigError, match="File name too long"):
        compose_sweep("n" * 300)


def test_a_window_below_the_longest_task_says_what_is_needed() -> None:
    with pytest.raises(ConfigError) as told:
        compose_sweep("demo-cpu", ["grid.context=[128]"])
    words = str(told.value)
    assert words.startswith("grid.context has 128, but the longest task needs a window of ")
    needed = int(words.split("a window of ")[1].split(maxsplit=1)[0])
    assert 1000 < needed <= 8192
    compose_sweep("demo-cpu", [f"grid.context=[{needed}]"])


def test_two_tasks_of_one_name_cannot_be_told_apart(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("name: edit\nmax_tokens: 8\nvariants: [Hello]\n")
    with pytest.raises(ConfigError, match="two tasks with the name 'edit'"):
        compose_sweep("demo-cpu", [f"workload.tasks=[edit,{tmp_path}/mine.yaml]"])


def test_a_sweep_that_cannot_know_the_model_says_so() -> None:
    with pytest.raises(ConfigError, match=r"model.id is not set: give a folder or a hub id"):
        compose_sweep("rtx5090-qwen3.8-27b-nvfp4")


def test_an_unknown_sweep_names_the_ready_ones() -> None:
    with pytest.raises(ConfigError, match=r"no sweep 'demo-cup': did you mean 'demo-cpu'\?"):
        compose_sweep("demo-cup")
    with pytest.raises(ConfigError, match=r"there is no sweep file none\.yaml"):
        compose_sweep("none.yaml")


def test_every_ready_sweep_composes_and_survives_its_file() -> None:
    assert "demo-cpu" in ready_sweeps()
    for name in ready_sweeps():
        composed = compose_sweep(
            name, ["model.id=some/model"], read_card=lambda: ("NVIDIA Test", 24.0, ("GPU-1",))
        )
        assert composed.spec.name == name
        assert spec_from_document(composed.document) == composed.spec


def test_ready_sweeps_search_for_boundaries_and_a_sweep_of_ones_own_launches_all(
    own: Write,
) -> None:
    for name in ready_sweeps():
        spec = compose_sweep(
            name, ["model.id=some/model"], read_card=lambda: ("NVIDIA Test", 24.0, ("GPU-1",))
        ).spec
        assert spec.search == SearchSpec(strategy="boundary"), name
    own_sweep = own(
        "mine.yaml",
        "defaults: [base, override model: qwen3-14b-awq, override card: rtx4090, "
        "override grid: 24gb, _self_]\n",
    )
    assert compose_sweep(own_sweep).spec.search == SearchSpec(strategy="exhaustive")
    chosen = compose_sweep(
        "demo-cpu",
        ["search.verify=all", "search.measure=boundaries", "search.audit=0", "search.seed=7"],
    ).spec.search
    assert chosen == SearchSpec("boundary", verify="all", measure="boundaries", audit=0, seed=7)
    assert compose_sweep("demo-cpu", ["search=exhaustive"]).spec.search.strategy == "exhaustive"


def test_the_32_gb_sweep_has_the_grid_it_promises() -> None:
    grid = compose_sweep("rtx5090-qwen3.8-27b-nvfp4", ["model.id=m"]).spec.grid
    assert grid.depth == tuple(range(7))
    assert {65536, 100000, 110000, 130000, 131072} <= set(grid.context)
    assert grid.utilization == (0.90, 0.93, 0.95, 0.97)
    assert set(grid.graphs) == {False, True}


def test_the_quantization_sweep_changes_only_the_model() -> None:
    nvfp4 = compose_sweep("rtx5090-qwen3.8-27b-nvfp4", ["model.id=m"]).spec
    awq = compose_sweep("rtx5090-qwen3.8-27b-awq", ["model.id=m"]).spec
    assert awq.model.quantization == "awq"
    assert (awq.grid, awq.card, awq.engine, awq.workload) == (
        nvfp4.grid, nvfp4.card, nvfp4.engine, nvfp4.workload
    )  # fmt: skip


def test_the_demo_grid_has_all_axes() -> None:
    cells = compose_sweep("demo-cpu").spec.grid.cells()
    assert len(cells) == 36
    assert Cell(3, 16384, True, 0.9) in cells


def test_card_auto_takes_the_card_that_is_there() -> None:
    card = ("NVIDIA GeForce RTX 4090", 23.99, ("GPU-a", "GPU-b"))
    spec = compose_sweep("demo-gpu", read_card=lambda: card).spec
    assert (spec.card.name, spec.card.memory_gib, spec.card.uuids) == card


def test_the_simulated_card_needs_neither_model_nor_gpu() -> None:
    spec = compose_sweep("rtx5090-qwen3.8-27b-nvfp4", ["engine=simulated"]).spec
    assert spec.card.kind == "simulated"
    assert spec.card.memory_gib == 31.36
    assert spec.model.id == spec.model.name


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """A folder of a user's own, somewhere else on the machine."""
    monkeypatch.chdir(tmp_path)

    def write(name: str, text: str) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return str(path)

    return write


def test_a_new_model_is_a_new_file_beside_the_sweep(own: Write) -> None:
    own("model/mine.yaml", "name: mine\nid: me/mine\nquantization: awq\n")
    sweep = own(
        "evening.yaml",
        """
        defaults:
          - base
          - override model: mine
          - override card: rtx4090
          - override grid: 24gb
          - _self_
        grid:
          depth: [0, 4]
          extra: {kv_cache_dtype: [auto, fp8]}
        """,
    )
    spec = compose_sweep(sweep).spec
    assert (spec.name, spec.model.id, spec.model.quantization) == ("evening", "me/mine", "awq")
    assert spec.grid.depth == (0, 4)
    assert {dict(cell.extra)["kv_cache_dtype"] for cell in spec.grid.cells()} == {"auto", "fp8"}


def test_the_documented_container_call_reaches_the_launch(own: Write) -> None:
    page = Path(__file__).parents[2] / "docs/configuration.md"
    example = page.read_text().split("```yaml\nengine:\n", 1)[1].split("```", 1)[0]
    sweep = own(
        "box.yaml",
        "defaults: [base, override model: qwen3-14b-awq, override card: rtx4090, "
        f"override grid: 24gb, _self_]\nengine:\n{example}",
    )
    spec = compose_sweep(sweep).spec
    plan = create_engine(spec).plan_launch(
        Cell(0, 16384, False, 0.9), port=8011, served_name="one", cards=("GPU-a", "GPU-b")
    )
    assert plan.argv[:3] == ("docker", "run", "--rm")
    assert '"device=GPU-a,GPU-b"' in plan.argv
    words = " ".join(plan.argv)
    assert "--model Qwen/Qwen3-14B-AWQ --host 127.0.0.1 --port 8011" in words
    assert "--served-model-name one" in words
    assert "--max-model-len 16384" in words


def test_local_folders_become_absolute(own: Write) -> None:
    own("models/mine/config.json", "{}")
    spec = compose_sweep("demo-cpu", ["model.id=./models/mine"]).spec
    assert spec.model.id == str(Path.cwd() / "models/mine")
    assert compose_sweep("demo-cpu", ["model.id=hub/name"]).spec.model.id == "hub/name"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("name: x\ngrid: {depth: [1]}\n", "a sweep file begins with `defaults: [base"),
        (
            "defaults: [base, override model: demo-mtp, _self_]\ngrid: {depht: [1]}\n",
            "unknown key 'grid.depht': did you mean 'grid.depth'?",
        ),
        ("name: x\ngrid: {depth: [1]\n", "line 3"),
        ("name: x\ngrid: {depth: [!!bool a]}\n", "cannot be read: a value in it is not what its"),
        ("name: x\ngrid: {depth: [!!int a]}\n", "cannot be read: invalid literal for int()"),
        ("grid: {depth: [" + "9" * 5000 + "]}\n", "cannot be read: a number in it is too large"),
        ("grid: {depth: " + "[" * 3000 + "\n", "cannot be read: it is nested too deeply"),
        ("defaults: [base]\n", "no model is chosen: add model=NAME"),
        (
            "defaults: [base, override model: none, _self_]\n",
            "there is no model 'none': there are",
        ),
    ],
)
def test_a_mistake_in_a_sweep_file_gets_one_line(own: Write, text: str, line: str) -> None:
    with pytest.raises(ConfigError) as told:
        compose_sweep(own("mine.yaml", text))
    assert line in str(told.value)
    assert "\n" not in str(told.value)
