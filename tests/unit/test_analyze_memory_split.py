import random
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_frontier.analyze.memory_split import BEYOND, Part, Source, memory_split
from vllm_frontier.store.tables import frame

Row = dict[str, Any]
CARD = 32.0
WEIGHTS, HEAD, ACTIVATION, GRAPHS = 20.85, 1.3, 1.72, 0.85
PER_1K, HEAD_PER_1K, STATE, STATE_PER_DEPTH = 0.0321, 0.00198, 0.15, 0.15


def needed(depth: int, context: int) -> float:
    per_1k = PER_1K + (HEAD_PER_1K if depth else 0.0)
    return per_1k * context / 1000 + STATE + STATE_PER_DEPTH * depth


def launch(
    depth: int,
    context: int,
    graphs: bool = True,
    utilization: float = 0.95,
    *,
    counted: bool = True,
    **more: Any,
) -> Row:
    """A launch on a card that is known exactly, with what vLLM's log would say of it."""
    fixed = WEIGHTS + (HEAD if depth else 0.0) + ACTIVATION
    fixed += GRAPHS if graphs and counted else 0.0
    available, need = utilization * CARD - fixed, needed(depth, context)
    works = available >= need
    row: Row = {
        "cell_id": f"{depth}/{context}/{graphs}/{utilization}",
        "attempt": 1,
        "depth": depth,
        "context": context,
        "graphs": graphs,
        "utilization": utilization,
        "extra": "{}",
        "status": "measured" if works else "infeasible",
        "failure_class": None if works else "kv_too_small",
        "card_memory_gib": CARD,
        "device_gib": CARD,
        "free_gib": 31.0,
        "weights_gib": round(WEIGHTS + (HEAD if depth else 0.0), 2),
        "activation_gib": ACTIVATION,
        "graph_gib": GRAPHS if graphs else None,
        "kv_available_gib": round(available, 2),
        "kv_needed_gib": None if works else round(need, 2),
        "kv_tokens": int(context * available / need) if works else None,
    }
    return row | more


def inferred(depth: int, context: int, graphs: bool = True, utilization: float = 0.95) -> Row:
    axes = {"depth": depth, "context": context, "graphs": graphs, "utilization": utilization}
    told = {"attempt": 0, "extra": "{}", "status": "inferred", "card_memory_gib": CARD}
    return {"cell_id": f"{depth}/{context}/{graphs}/{utilization}", **axes, **told}


def split(rows: list[Row], **more: Any) -> pl.DataFrame:
    return memory_split(frame("trials", rows).lazy(), **more).collect()


def parts(found: pl.DataFrame, cell_id: str) -> dict[str, tuple[float, str]]:
    rows = found.filter(pl.col("cell_id") == cell_id)
    return {row["part"]: (row["gib"], row["source"]) for row in rows.iter_rows(named=True)}


def sizes(found: pl.DataFrame, cell_id: str) -> dict[str, float]:
    return {part: size for part, (size, _) in parts(found, cell_id).items()}


SWEEP = [
    launch(0, 65_536),
    launch(0, 131_072, False),
    launch(3, 65_536),
    launch(3, 131_072),
    launch(3, 200_000),
    inferred(3, 180_000),
    inferred(3, 32_768),
]


def test_the_parts_of_a_known_card_are_found() -> None:
    found = split(SWEEP)
    told = parts(found, "3/131072/True/0.95")
    assert told["weights"] == (20.85, "derived")  # the log has those of the head in them
    assert told["head"] == (pytest.approx(HEAD), "derived")
    assert told["activation"] == (ACTIVATION, "logged")
    assert told["graphs"] == (GRAPHS, "logged")
    assert told["state"][0] == pytest.approx(STATE + 3 * STATE_PER_DEPTH, abs=0.03)
    window = told["state"][0] + told["KV cache"][0]
    assert window == pytest.approx(needed(3, 131_072), abs=0.02)
    left = 0.95 * CARD - WEIGHTS - HEAD - ACTIVATION - GRAPHS - needed(3, 131_072)
    assert told["left over"][0] == pytest.approx(left, abs=0.02)
    assert "missing" not in told
    assert parts(found, "0/65536/True/0.95")["weights"] == (20.85, "logged")


def test_a_window_that_is_refused_misses_what_vllm_says() -> None:
    found = split(SWEEP)
    row = found.filter(pl.col("cell_id") == "3/200000/True/0.95").row(0, named=True)
    assert row["needed_gib"] == round(needed(3, 200_000), 2)  # logged
    told = sizes(found, "3/200000/True/0.95")
    assert told["missing"] == pytest.approx(row["needed_gib"] - row["available_gib"])
    assert "left over" not in told


def test_what_was_not_launched_is_derived_from_launches_alike() -> None:
    found = split(SWEEP)
    told = parts(found, "3/180000/True/0.95")
    assert {source for _, source in told.values()} == {"derived"}
    available = 0.95 * CARD - WEIGHTS - HEAD - ACTIVATION - GRAPHS
    assert told["missing"][0] == pytest.approx(needed(3, 180_000) - available, abs=0.03)


def test_the_head_takes_as_much_of_a_token_at_every_depth() -> None:
    told = [launch(depth, context) for depth in (0, 1) for context in (32_768, 131_072)]
    found = split([*told, inferred(3, 131_072)])
    row = found.filter(pl.col("depth") == 3).row(0, named=True)
    assert row["needed_gib"] == pytest.approx(needed(3, 131_072), abs=0.03)


def test_a_state_that_windows_do_not_tell_surely_is_not_told_apart() -> None:
    # From windows that are nearly as long nothing is sure about length 0.
    close = split([launch(0, 65_536), launch(0, 73_000)])
    assert "state" not in set(close["part"])
    apart = split([launch(0, 16_384), launch(0, 131_072)])
    assert sizes(apart, "0/16384/True/0.95")["state"] == pytest.approx(STATE, abs=0.02)


def test_weights_without_a_head_are_those_of_the_same_further_axes() -> None:
    other = {"extra": '{"quantization": "fp8"}', "weights_gib": 12.0}
    told = split([launch(0, 65_536), launch(3, 65_536, **other, cell_id="other")])
    assert parts(told, "other")["weights and head"] == (12.0, "logged")
    lighter = launch(0, 65_536, **other | {"weights_gib": 11.0}, cell_id="lighter")
    told = split([launch(0, 65_536), lighter, launch(3, 65_536, **other, cell_id="other")])
    assert sizes(told, "other")["head"] == pytest.approx(1.0)


def test_what_is_refused_has_nothing_left_over() -> None:
    row = launch(0, 65_536, status="infeasible", failure_class="oom_serve")
    told = parts(split([row | {"kv_needed_gib": round(needed(0, 65_536), 2)}]), row["cell_id"])
    assert told["KV cache"] == (row["kv_available_gib"], "logged")
    assert not {"left over", "missing"} & set(told)
    assert "left over" in parts(split([launch(0, 65_536)]), row["cell_id"])


def test_without_a_launch_at_depth_0_the_head_is_not_told_apart() -> None:
    told = parts(split([launch(3, 65_536)]), "3/65536/True/0.95")
    assert told["weights and head"] == (22.15, "logged")
    assert "head" not in told
    assert "state" not in told  # one window does not tell what it would need at length 0


def test_an_engine_that_logs_nothing_has_what_is_declared() -> None:
    row = launch(0, 16_384, weights_gib=None, activation_gib=None, graph_gib=None)
    row |= {"device_gib": None, "card_memory_gib": 0.3, "kv_available_gib": 0.22}
    told = parts(split([row | {"kv_tokens": 32_768}], reserved_gib=0.065), row["cell_id"])
    assert told["reserved"] == (0.065, "declared")
    assert told["KV cache"][0] == pytest.approx(0.11)
    assert set(told) == {"reserved", "KV cache", "left over"}


def test_where_the_launch_ended_early_the_rest_is_not_known() -> None:
    row = launch(0, 65_536, failure_class="oom_profile", status="infeasible")
    row |= {"kv_available_gib": None, "kv_tokens": None, "activation_gib": None}
    told = parts(split([row]), row["cell_id"])
    assert told["not known"] == (pytest.approx(0.95 * CARD - WEIGHTS - GRAPHS), "derived")
    assert set(told) == {"weights", "graphs", "not known"}


def test_graphs_that_are_captured_beside_the_share_are_not_of_the_budget() -> None:
    row = launch(0, 65_536, counted=False)
    told = parts(split([row]), row["cell_id"])
    assert told["graphs beside the share"] == (GRAPHS, "logged")
    assert "graphs" not in told
    assert abs(sizes(split([row]), row["cell_id"]).get("other", 0.0)) < 0.01


def test_where_nothing_is_left_for_the_cache_the_parts_exceed_the_budget() -> None:
    row = launch(0, 65_536, utilization=0.7)
    assert row["kv_available_gib"] == -1.02
    told = sizes(split([row]), row["cell_id"])
    inside = sum(size for part, size in told.items() if part not in BEYOND)
    assert inside == pytest.approx(0.7 * CARD + 1.02)
    assert told["missing"] == row["kv_needed_gib"]


def test_a_card_of_unknown_size_has_no_parts() -> None:
    row = launch(0, 65_536, card_memory_gib=None, device_gib=None)
    assert split([row]).is_empty()
    assert split([]).is_empty()


def test_what_a_launch_told_first_is_not_lost_when_it_failed_later() -> None:
    again = launch(0, 65_536, attempt=2, status="failed", failure_class="killed")
    empty = {name: None for name in again if name.endswith("_gib") and name != "card_memory_gib"}
    found = split([launch(0, 65_536), again | empty])
    assert parts(found, "0/65536/True/0.95")["activation"] == (ACTIVATION, "logged")


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.booleans())
def test_the_parts_add_up_to_the_budget_whatever_the_log_says(seed: int, declares: bool) -> None:
    draw = random.Random(seed)

    def figure(least: float, most: float) -> float | None:
        return None if draw.random() < 0.3 else round(draw.uniform(least, most), 2)

    rows = []
    for _ in range(draw.randint(1, 12)):
        row = launch(
            draw.choice([0, 1, 3]),
            draw.choice([4096, 65_536, 131_072]),
            draw.random() < 0.5,
            draw.choice([0.5, 0.9, 0.95]),
        )
        row |= {
            "weights_gib": figure(0.0, 30.0),
            "activation_gib": figure(0.0, 5.0),
            "graph_gib": figure(0.0, 3.0),
            "kv_available_gib": figure(-5.0, 20.0),
            "kv_needed_gib": figure(0.0, 20.0),
            "kv_tokens": draw.choice([None, 16, 10_000, 10_000_000]),
            "max_context_estimate": draw.choice([None, 1, 100_000]),
            "device_gib": draw.choice([None, 31.5]),
        }
        rows.append(row)
    rows += [inferred(1, 8192), inferred(3, 131_072, False, 0.5)]
    found = split(rows, reserved_gib=draw.uniform(0.0, 2.0) if declares else None)
    assert {row["cell_id"] for row in rows} == set(found["cell_id"])
    inside = (
        found.filter(~pl.col("part").is_in([each.value for each in BEYOND]))
        .group_by("cell_id")
        .agg(pl.col("gib").sum(), pl.col("budget_gib", "available_gib").first())
    )
    for size, budget, available in inside.drop("cell_id").iter_rows():
        over = max(-available, 0.0) if available is not None else 0.0
        assert size == pytest.approx(budget + over, abs=1e-9)
    negative = found.filter(pl.col("gib") < 0)["part"].unique().to_list()
    assert set(negative) <= {Part.OTHER.value, Part.NOT_KNOWN.value}
    assert set(found["source"]) <= {each.value for each in Source}
