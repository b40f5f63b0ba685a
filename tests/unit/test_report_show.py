import io
import json
import subprocess

import pytest
from rich.console import Console

from vllm_frontier.analyze.derived import derived_tables
from vllm_frontier.report.documents import show_document
from vllm_frontier.report.recommend.headline import describe
from vllm_frontier.report.recommend.serving.shell import lines
from vllm_frontier.report.terminal.tables import print_show
from vllm_frontier.store.tables import frame


def sweep(engine: str = "vllm", extra: str = "{}") -> dict:
    base = {
        "sweep": "demo",
        "attempt": 1,
        "extra": extra,
        "engine": engine,
        "phase": "stop",
        "model": "org/model",
        "card": "A card",
    }
    contexts = [8192 * 2**power for power in range(5)]
    trials, runs = [], []
    for depth in (0, 3):
        for graphs in (False, True):
            for utilization in (0.9, 0.95):
                for context in contexts:
                    cell = f"{depth}{graphs}{utilization}{context}"
                    row = {
                        **base,
                        "cell_id": cell,
                        "depth": depth,
                        "graphs": graphs,
                        "utilization": utilization,
                        "context": context,
                        "status": "measured",
                    }
                    trials.append(row)
                    if context == contexts[-1] and utilization == 0.9:
                        row |= {
                            "status": "infeasible",
                            "failure_class": "kv_too_small",
                            "evidence": "ValueError: [5.00 GiB KV cache is needed]",
                            "evidence_line": 41,
                        }
                        continue
                    speed = (40.0 if graphs else 20.0) * (1 + depth * 0.5)
                    runs += [
                        {
                            "cell_id": cell,
                            "attempt": 1,
                            "task": task,
                            "kind": "decode",
                            "concurrency": 1,
                            "repeat": 0,
                            "decode_tok_s": speed * factor,
                        }
                        for task, factor in (("edit", 1.25), ("code", 1.0), ("prose", 0.75))
                    ]
    trials[0] |= {"status": "inferred", "attempt": 0}
    trials[1] |= {"status": "failed", "failure_class": "port_in_use", "evidence": "EADDRINUSE"}
    table, measured = frame("trials", trials).lazy(), frame("runs", runs).lazy()
    derived = derived_tables(table, measured)
    return show_document("demo", table, measured, derived["frontier"], derived["boundaries"])


def printed(document: dict, width: int = 80) -> str:
    out = io.StringIO()
    print_show(document, Console(file=out, width=width))
    return out.getvalue()


def test_the_document_is_json_with_axes_as_keys() -> None:
    document = json.loads(json.dumps(sweep(extra='{"max_num_seqs": 4}')))
    assert document["cells"] == {"failed": 1, "inferred": 1, "infeasible": 4, "measured": 34}
    fastest = next(each for each in document["choices"] if "fastest" in each["choices"])
    assert (fastest["depth"], fastest["graphs"], fastest["max_num_seqs"]) == (3, True, 4)
    assert fastest["decode_tok_s"] == 100.0
    assert fastest["task_decode_tok_s"] == {"code": 100.0, "edit": 125.0, "prose": 75.0}
    assert "extra" not in fastest
    row = document["boundaries"][0]
    assert (row["max_context_works"], row["min_context_fails"]) == (65_536, 131_072)
    assert document["simulated"] is False
    assert len(document["grid"]) == 40


def test_speeds_are_told_by_depth_and_task() -> None:
    document = sweep()
    rows = {(each["depth"], each["task"]): each for each in document["speeds"]}
    assert rows[3, "edit"]["graphs"] == 125.0
    assert rows[0, "edit"]["acceptance"] is None
    text = printed(document)
    assert "How fast" in text
    assert "125.0" in text


def test_show_fits_eighty_columns_and_has_no_codes_without_a_terminal() -> None:
    text = printed(sweep())
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "\x1b" not in text
    headline = "demo: 40 cells (34 measured, 4 infeasible, 1 failed, 1 inferred; 39 launches, 1"
    assert text.startswith(headline)
    assert "100.0" in text
    assert "5.00" in text
    assert "[5.00 GiB KV cache is needed]" in text
    assert "simulated" not in text


@pytest.mark.parametrize(
    ("width", "missing"),
    [
        (80, []),
        (64, ["prefill"]),
        (56, ["prefill", "x base"]),
        (49, ["prefill", "x base", "spare"]),
    ],
)
def test_a_narrow_frontier_has_fewer_columns_and_whole_figures(
    width: int, missing: list[str]
) -> None:
    document = sweep()
    figures = {"prefill_tok_s": 11674.9, "decode_tok_s_low": 39.4, "decode_tok_s_high": 914.3}
    rows = [row | figures | {"kv_headroom_gib": 0.08} for row in document["frontier"]]
    text = printed(document | {"frontier": rows}, width).partition("Frontier")[2]
    head, _, *told = text.strip().splitlines()
    shown = ["context", "depth", "graphs", "util", "tokens/s", "95 %"]
    shown += [name for name in ("x base", "prefill", "spare") if name not in missing]
    assert " ".join(head.split()) == " ".join(shown)
    assert "39.4-914.3" in told[0]
    assert told[0].split()[0] == "131072"
    assert all(len(line) <= width for line in told)
    words = " ".join(" ".join(told).partition("What fits")[0].split())
    assert ("no room here for: " in words) == bool(missing)
    assert f"no room here for: {', '.join(missing)}." in words or not missing
    assert [name for name in ("prefill", "x base", "spare") if f"{name}: " in words] == [
        name for name in ("prefill", "x base", "spare") if name not in missing
    ]


def test_what_was_simulated_says_so_in_every_title() -> None:
    text = printed(sweep("simulated"))
    for name in ("demo", "Frontier", "What fits", "Without a result", "Grid"):
        assert f"{name} (simulated)" in text


def test_a_terminal_that_only_knows_ascii_gets_ascii() -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    print_show(sweep(), Console(file=out, width=80))
    out.flush()
    assert b"Frontier" in raw.getvalue()


def test_an_empty_sweep_prints() -> None:
    table, measured = frame("trials").lazy(), frame("runs").lazy()
    derived = derived_tables(table, measured)
    document = show_document("demo", table, measured, derived["frontier"], derived["boundaries"])
    assert printed(document) == "demo: 0 cells\n\nNo cell has a measured speed yet.\n"


ARGUMENTS = (
    "--max-model-len",
    "8192",
    "--speculative-config",
    '{"method": "mtp", "num_speculative_tokens": 3}',
    "--enforce-eager",
)


def test_a_command_survives_a_shell() -> None:
    text = lines(["vllm", "serve", "/models/my model's"], ARGUMENTS)
    shown = subprocess.run(
        ["bash", "-c", text.replace("vllm serve", "printf '%s\\n'", 1)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.splitlines() == ["/models/my model's", *ARGUMENTS]
    assert text.splitlines()[1] == "    --max-model-len 8192 \\"
    assert text.splitlines()[-1] == "    --enforce-eager"


def test_a_recommendation_says_what_it_is() -> None:
    choice = next(each for each in sweep()["choices"] if "fastest" in each["choices"])
    told = describe(choice)
    assert told.startswith("fastest")
    assert "depth 3, context 131072, graphs on, utilization 0.95: 100.0 tokens/s" in told
    assert told.endswith("5.00 x baseline")


def test_a_simulated_recommendation_is_labelled() -> None:
    choice = sweep("simulated")["choices"][0]
    assert describe(choice).endswith("(simulated)")
