"""The runs of a sweep, read once: whatever their order, their chunks and their file."""

from importlib import import_module
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from checked_sweep import Row, decode, drafting, launch
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from vllm_frontier.analyze import digest as digests
from vllm_frontier.analyze.checks import NAMES
from vllm_frontier.analyze.derived import derived_tables
from vllm_frontier.analyze.digest import Digest
from vllm_frontier.analyze.packed import packed, paired
from vllm_frontier.store import tables
from vllm_frontier.store.tables import frame

TASKS = ("edit", "code")


def told(of: Row, number: int, run: Row) -> Row:
    """A run with text and telemetry; texts of depth 2 part from those of depth 0."""
    repeat = run["repeat"]
    ids = [
        100 * repeat + (each if of["depth"] < 2 or each < 20 else each + 7) for each in range(64)
    ]
    return run | {
        "decode_tok_s_server": run["decode_tok_s"],
        "decode_tok_s_client": run["decode_tok_s"] * (1 + 0.02 * (repeat % 7)),
        "completion_tokens": 64,
        "prompt_tokens": 500,
        "output_token_ids": ids,
        "output": " ".join(map(str, ids)),
        "output_sha256": f"{of['depth'] == 2}-{repeat}",
        "throttle_reasons": ["power_cap"] if repeat % 3 == 0 else [],
        "throttled_share": 0.1 * (repeat % 3 == 0),
        "foreign_processes": 2,
        "foreign_gib": 0.5 + 0.01 * number,
        "foreign_cores": 0.1,
        "sm_clock_mhz": 2500.0 - repeat,
    }


def runs_of(of: Row, number: int, rng: np.random.Generator) -> list[Row]:
    speeds = 100 * (1 + 0.4 * of["depth"]) * np.exp(rng.normal(0, 0.02, (len(TASKS), 6)))
    speeds[0, 3] *= 0.7  # far off
    made: list[Row] = []
    for task, each in zip(TASKS, speeds.tolist(), strict=True):
        if of["depth"]:
            made += drafting(of, *each, accepted=40, drafts=50, task=task)
        else:
            made += decode(of, *each, task=task, drafts=0, draft_tokens=0)
    prefill = {"kind": "prefill", "task": "prefill", "cached_tokens": 0, "variant": None}
    probe = {"kind": "probe", "output_logprob": -1.0, "output_logprob_expected": -1.1}
    found = [told(of, number, run) for run in made]
    found += [found[0] | prefill | {"prefill_tok_s": 9000.0 + 10 * each} for each in range(5)]
    return [*found, *(found[each] | probe for each in range(2))]


@pytest.fixture(scope="module")
def sweep() -> tuple[pl.DataFrame, pl.DataFrame]:
    """Three depths with two launches each, one of which is of a launch that failed."""
    rng = np.random.default_rng(1)
    launches = [
        launch(depth, attempt, hours=depth + 3 * attempt, spec_state="working" if depth else None)
        for attempt in (1, 2, 3)
        for depth in (0, 1, 2)
    ]
    for each in launches[3:]:
        each["purpose"] = "replicate" if each["depth"] else "reference"
    launches[-1]["status"] = "failed"
    rows = [run for number, each in enumerate(launches) for run in runs_of(each, number, rng)]
    return frame("trials", launches), frame("runs", rows)


def derived(trials: pl.LazyFrame, runs: pl.LazyFrame) -> dict[str, pl.DataFrame]:
    found = derived_tables(trials, runs, precision=0.05)
    return {name: table.collect() for name, table in found.items()}


def assert_same(one: dict[str, pl.DataFrame], other: dict[str, pl.DataFrame]) -> None:
    for name, table in one.items():
        assert_frame_equal(table, other[name], rel_tol=1e-9)


def test_a_sweep_with_everything_in_it_is_judged_by_every_check(
    sweep: tuple[pl.DataFrame, pl.DataFrame],
) -> None:
    found = derived(*(table.lazy() for table in sweep))
    judged = found["checks"].filter(pl.col("verdict") != "unknown")
    assert set(judged["check"]) == set(NAMES)
    assert found["frontier"].height == 1
    assert found["boundaries"].height == 3


@pytest.mark.parametrize("texts", [1, 50_000])
@pytest.mark.parametrize("seed", range(3))
def test_tables_do_not_depend_on_the_order_of_rows_or_on_chunks(
    sweep: tuple[pl.DataFrame, pl.DataFrame],
    monkeypatch: pytest.MonkeyPatch,
    texts: int,
    seed: int,
) -> None:
    monkeypatch.setattr(digests, "_TEXTS_AT_MOST", texts)
    whole = derived(*(table.lazy() for table in sweep))
    # In small pieces, of which none may be lost.
    monkeypatch.setattr(digests, "_PIECE", 10)
    for name in ("baseline", "lossless"):
        monkeypatch.setattr(import_module(f"vllm_frontier.analyze.checks.{name}"), "_AT_ONCE", 1)
    trials, runs = sweep
    shuffled = runs.sample(fraction=1.0, shuffle=True, seed=seed)
    chunks = pl.concat([shuffled.slice(start, 7) for start in range(0, runs.height, 7)])
    assert chunks.n_chunks() > 1
    rows = trials.sample(fraction=1.0, shuffle=True, seed=seed)
    assert_same(whole, derived(rows.lazy(), chunks.lazy()))


def test_tables_are_the_same_from_files(
    sweep: tuple[pl.DataFrame, pl.DataFrame], tmp_path: Path
) -> None:
    files = []
    for name, table in zip(("trials", "runs"), sweep, strict=True):
        (tmp_path / name).write_bytes(tables.parquet(name, table))
        files.append(pl.scan_parquet(tmp_path / name))
    assert_same(derived(*(table.lazy() for table in sweep)), derived(*files))


def test_a_run_belongs_to_its_launch_however_launches_alternate(
    sweep: tuple[pl.DataFrame, pl.DataFrame],
) -> None:
    trials, runs = sweep
    runs = runs.sample(fraction=1.0, shuffle=True, seed=5)
    digest = Digest(trials.lazy(), runs.lazy())
    named = digest.runs.join(digest.launches, on="launch", how="left", suffix="_of_launch")
    failed = (runs["attempt"] == 3) & runs["cell_id"].str.starts_with("2/")
    assert digest.runs["launch"].is_null().to_list() == failed.to_list()
    known = named.filter(pl.col("launch").is_not_null())
    assert known["cell_id"].cast(pl.String).equals(known["cell_id_of_launch"], check_names=False)
    assert known["attempt"].equals(known["attempt_of_launch"], check_names=False)
    assert digest.measured.height == runs.height - failed.sum()


def test_the_same_text_is_read_once() -> None:
    of = launch()
    texts: list[Row] = [
        {"output_sha256": "a", "completion_tokens": 3, "output_token_ids": [1, 2, 3]},
        {"output_sha256": "a", "completion_tokens": 3, "output_token_ids": [1, 2, 3]},
        {"output_sha256": "a", "completion_tokens": 2, "output_token_ids": [1, 5]},
        {"output_sha256": None, "completion_tokens": 2, "output_token_ids": [1, 6]},
        {"output_sha256": None, "completion_tokens": 2, "output_token_ids": [1, 7]},
    ]
    rows = [run | text for run, text in zip(decode(of, *[50.0] * 5), texts, strict=True)]
    digest = Digest(frame("trials", [of]).lazy(), frame("runs", rows).lazy())
    assert digest.compared["text"].to_list() == [0, 0, 2, 3, 4]
    read = dict(digest.texts.sort("row").iter_rows())
    assert read == {0: [1, 2, 3], 2: [1, 5], 3: [1, 6], 4: [1, 7]}


def test_tokens_are_counted_by_position_where_nothing_else_counts_them() -> None:
    of = launch(depth=3)
    rows = decode(of, 50.0, 50.0, 50.0, 50.0, drafts=10, draft_tokens=30)
    rows[0] |= {"accepted_tokens": 9, "accepted_per_position": [5, 4, 2]}
    rows[1] |= {"accepted_per_position": [5, 4, 2]}
    rows[2] |= {"accepted_per_position": [5, None, 2]}
    digest = Digest(frame("trials", [of]).lazy(), frame("runs", rows).lazy())
    assert digest.decode.sort("row")["accepted"].to_list() == [9, 11, None, None]
    assert digest.decode.sort("row")["positions"].to_list() == [3, 3, 3, None]


_NUMBERS = st.one_of(st.none(), st.integers(-3, 2**31 - 1), st.integers(0, 3))
_WORDS = st.one_of(st.none(), st.sampled_from("abc"))


@given(st.lists(st.tuples(_NUMBERS, _WORDS, _NUMBERS), min_size=1, max_size=30))
def test_packed_columns_tell_the_same_rows_apart(rows: list[tuple[int, str, int]]) -> None:
    kinds = {"one": pl.Int64, "word": pl.Categorical, "other": pl.Int64}
    table = pl.DataFrame(rows, schema=kinds, orient="row").with_columns(
        _key=packed("one", "word", "other")
    )
    assert table["_key"].null_count() == 0
    assert table["_key"].n_unique() == len(set(rows)) == table.unique().height


def test_pairs_of_numbers_are_the_same_in_every_table() -> None:
    largest = 2**32 - 1
    table = pl.DataFrame(
        {"one": [0, 1, largest, largest], "other": [1, 0, 0, largest]},
        schema={"one": pl.UInt32, "other": pl.UInt32},
    )
    keys = table.select(paired("one", "other").alias("_key"))["_key"].to_list()
    assert keys == [1, 2**32, largest * 2**32, 2**64 - 1]
