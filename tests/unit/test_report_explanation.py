"""What `explain` says of a log, in JSON and in words."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from vllm_frontier.engine.reading import read
from vllm_frontier.outcome import Failure, FailureClass, Phase, StartupFacts, Status
from vllm_frontier.report import explanation, remedies
from vllm_frontier.store.schema import SCHEMAS

LOGS = Path(__file__).parent / "logs"
ALL = sorted(LOGS.rglob("*.log"))
KEYS = [
    *("status", "failure_class", "phase", "evidence", "evidence_line", "retryable", "started"),
    *("facts", "advice"),
]


def explained(name: str) -> dict[str, Any]:
    log = next(path for path in ALL if path.stem == name)
    return explanation.document(
        read(log, json.loads(log.with_suffix(".json").read_text())["exit_code"])
    )


@pytest.mark.parametrize("log", ALL, ids=lambda log: log.stem)
def test_every_log_has_a_whole_document(log: Path) -> None:
    answer = json.loads(log.with_suffix(".json").read_text())
    found = explanation.document(read(log, answer["exit_code"]))
    assert list(found) == KEYS
    status = answer["expected"]["status"]
    assert found["status"] in ([status] if isinstance(status, str) else status)
    assert set(found["facts"]) <= set(SCHEMAS["trials"].names)
    assert found["retryable"] == (found["status"] == "failed")
    assert found["advice"].endswith(".")
    assert json.loads(json.dumps(found, allow_nan=False)) == found


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "kv_too_small",
            "At this utilization 19,328 tokens fit; 65,536 need 0.04 GiB more: lower "
            "--max-model-len to 19328 or less",
        ),
        ("kv_too_small_v0", "17,024 tokens fit; 32,768 need more memory than is left"),
        ("kv_none_negative", "raise --gpu-memory-utilization"),
        ("state_slots_too_few", "161 sequences and 256 were asked for: set --max-num-seqs to 161"),
        ("util_invalid", "gpu_memory_utilization: Input should be less than or equal to 1."),
        ("spec_n_zero", "num_speculative_tokens: Input should be greater than 0."),
        ("free_memory_032", "29.80 of 31.36 GiB are free and 30.73 were asked for: lower "
         "--gpu-memory-utilization from 0.98 to 0.95 or less"),
        ("kv_above_ram", "20.59 GiB are free and 55.88 were asked for the KV cache"),
        ("len_above_max", "131,072 tokens and 200,000 were asked for: set --max-model-len"),
        ("oom_serve", "1.74 GiB were asked for while 605.88 MiB of 31.36 GiB were free"),
        ("batched_tokens_small", "max_num_batched_tokens (2) must be greater than or equal to"),
    ],
)  # fmt: skip
def test_advice_has_the_numbers_of_the_log(name: str, words: str) -> None:
    assert words in explained(name)["advice"]


@pytest.mark.parametrize("failure_class", FailureClass)
def test_every_class_has_its_advice(failure_class: FailureClass) -> None:
    failure = Failure(failure_class, Phase.LOAD, "some line", 3)
    sentence = remedies.advice(failure, StartupFacts())
    assert sentence.endswith(".")
    assert "None" not in sentence
    if failure_class.status is Status.FAILED:
        assert "lower --max-model-len" not in sentence


def test_a_gap_below_the_log_s_precision_is_not_zero() -> None:
    failure = Failure(FailureClass.KV_TOO_SMALL, Phase.ALLOCATE_KV, "max seq len (8,192)", 1)
    facts = StartupFacts(kv_needed_gib=0.5, kv_available_gib=0.5, max_context_estimate=8176)
    assert "8,192 need up to 0.01 GiB more" in remedies.advice(failure, facts)


def test_a_healthy_server_has_started() -> None:
    found = explained("term_idle")
    assert (found["status"], found["failure_class"], found["phase"]) == ("started", None, "ready")
    assert found["evidence"] == "Application startup complete."
    assert found["started"] is True
    assert f"{found['facts']['kv_tokens']:,} tokens" in found["advice"]


def test_a_log_that_just_ends_is_unknown_until_the_exit_code_is_given() -> None:
    log = LOGS / "kill9_api_load.log"
    found = explanation.document(read(log))
    assert (found["status"], found["failure_class"]) == ("failed", "unknown")
    assert found["retryable"] is True
    assert "--exit-code" in found["advice"]
    assert found["evidence_line"] is not None
    assert explanation.document(read(log, -9))["failure_class"] == "killed"


def test_a_terminal_of_80_columns_shows_all_of_it() -> None:
    console = Console(width=80, record=True, force_terminal=False)
    explanation.show(explained("kv_too_small"), console)
    text = console.export_text()
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "infeasible: kv_too_small" in text
    assert "line 70" in text
    assert "19,328 tokens" in text
    assert "0.06 GiB" in text


def run(*words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "vllm_frontier", "explain", *words],
        input=stdin, capture_output=True, check=False, timeout=60,
    )  # fmt: skip


def test_a_log_from_standard_input_reads_like_the_file() -> None:
    log = LOGS / "kv_too_small.log"
    by_name = run(str(log), "--json", "--exit-code", "1")
    by_stream = run("--exit-code", "1", "-", "--json", stdin=log.read_bytes())
    assert by_name.returncode == by_stream.returncode == 0
    assert by_name.stdout == by_stream.stdout
    assert json.loads(by_name.stdout)["facts"]["max_context_estimate"] == 19328


def test_a_signal_may_be_given_as_a_negative_exit_code() -> None:
    found = json.loads(run("-", "--json", "--exit-code", "-9").stdout)
    assert (found["failure_class"], found["evidence_line"]) == ("killed", None)
    assert json.loads(run("-", "--json", "--exit-code", "137").stdout) == found


@pytest.mark.parametrize(
    ("head", "complaint"),
    [
        (b"\x1f\x8b\x08\x00", "gzip -dc FILE | vllm-frontier explain -"),
        (b"\xff\xfeI\x00", "UTF-16"),
    ],
)
def test_what_is_no_text_is_refused_with_what_to_do(head: bytes, complaint: str) -> None:
    done = run("-", stdin=head * 100)
    assert done.returncode == 2
    assert complaint in done.stderr.decode()
    assert len(done.stderr.decode().strip().splitlines()) == 1


def test_a_closed_input_and_a_full_output_are_one_line() -> None:
    command = f"{sys.executable} -m vllm_frontier explain"
    for redirected, complaint in (
        ("- <&-", "standard input is closed"),
        (f"{LOGS / 'kv_too_small.log'} >/dev/full", "No space left on device"),
        (f"{LOGS / 'kv_too_small.log'} --json >/dev/full", "No space left on device"),
    ):
        done = subprocess.run(
            ["bash", "-c", f"{command} {redirected}"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert complaint in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["no-such.log"], "no-such.log"),
        ([str(LOGS)], "directory"),
        ([], "LOG"),
        (["-", "--exit-code", "many"], "many"),
        (["-", "--exit-code", "4000"], "4000"),
    ],
)
def test_wrong_words_get_one_line_and_exit_2(words: list[str], complaint: str) -> None:
    done = run(*words)
    assert done.returncode == 2
    lines = done.stderr.decode().strip().splitlines()
    assert len(lines) == 1
    assert complaint in lines[0]
    assert done.stdout == b""
