"""The simulated server as processes: it starts, answers, counts, refuses and stops."""

import contextlib
import dataclasses
import http.client
import json
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from simulated_launch import CELL, PATIENCE_S, Launched, alive, card_file, gone, launched

from vllm_frontier.engine.simulated.card import decode_speed, simulate_start
from vllm_frontier.grid import Cell
from vllm_frontier.outcome import FailureClass, Phase

CODE = "Write a Python module `ring.py`."


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    folder = tmp_path_factory.mktemp("server")
    with launched(card_file(folder), folder / "server.log") as server:
        assert server.ready()
        yield server


def test_log_of_a_start_reads_like_vllm(server: Launched) -> None:
    reading = server.engine.read_log(server.log)
    assert (reading.started, reading.failure, reading.phase) == (True, None, Phase.READY)
    facts = simulate_start(server.engine.card, CELL).facts
    assert reading.facts.kv_tokens == facts.kv_tokens
    assert reading.facts.kv_available_gib == pytest.approx(2.45)
    assert reading.facts.weights_gib == pytest.approx(3.75)
    assert reading.facts.graph_gib == pytest.approx(0.5)
    assert reading.facts.activation_gib == pytest.approx(0.5)
    assert reading.facts.graph_mode == "FULL_AND_PIECEWISE"
    assert reading.facts.engine_version == "simulated-1"


def test_routes(server: Launched) -> None:
    assert server.request("GET", "/health") == (200, "")
    assert server.request("POST", "/ping") == (200, "")
    assert server.request("GET", "/version") == (200, '{"version":"simulated-1"}')
    assert server.request("GET", "/load") == (200, '{"server_load":0}')
    assert server.request("GET", "/nothing") == (404, '{"detail":"Not Found"}')
    for method, path in (("POST", "/health"), ("GET", "/tokenize"), ("GET", "/v1/completions")):
        assert server.request(method, path) == (405, '{"detail":"Method Not Allowed"}')
    (model,) = json.loads(server.request("GET", "/v1/models")[1])["data"]
    assert (model["id"], model["root"], model["max_model_len"]) == ("served", "some/model", 16384)
    assert len(model["permission"]) == 1


def test_texts_become_tokens_and_tokens_texts(server: Launched) -> None:
    asked = {"prompt": "one two", "return_token_strs": True}
    told = json.loads(server.request("POST", "/tokenize", asked)[1])
    assert (told["count"], told["max_model_len"]) == (2, 16384)
    assert told["token_strs"] == ["one", " two"]
    again = server.request("POST", "/detokenize", {"tokens": [*told["tokens"][1:], 17]})
    assert again == (200, '{"prompt":" two\ufffd"}')
    status, text = server.request("POST", "/tokenize", {"model": "other", "prompt": "x"})
    assert (status, "Valid aliases: served." in text) == (404, True)
    status, text = server.request("POST", "/detokenize", {})
    assert (status, "'loc': 'body.tokens', 'msg': 'Field required'" in text) == (400, True)


@pytest.mark.parametrize(
    ("data", "kind", "told"),
    [
        (b'{"a": 1,}', "application/json", "'type': 'json_invalid', 'loc': 'body.8'"),
        (b"", "application/json; charset=utf-8", "'loc': 'body', 'msg': 'Field required'"),
        (b"{}", "text/plain", "Unsupported Media Type: Only 'application/json' is allowed"),
        (b"[1]", "application/json", "'type': 'model_attributes_type'"),
    ],
)
def test_bodies_that_are_no_requests(server: Launched, data: bytes, kind: str, told: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
    with contextlib.closing(connection):
        connection.request("POST", "/v1/completions", data, {"Content-Type": kind})
        response = connection.getresponse()
        error = json.loads(response.read())["error"]
    assert (response.status, error["code"], error["type"]) == (400, 400, "Bad Request")
    assert told in error["message"]


@pytest.mark.parametrize(
    ("prompt", "task"),
    [(CODE, "code"), ("Again: Here is the file `a.py`", "edit"), ("Explain tides.", "prose")],
)
def test_speed_on_the_servers_clock_is_the_formula(
    server: Launched, prompt: str, task: str
) -> None:
    before = server.metrics()
    events = server.stream(prompt, max_tokens=300, stream_options={"include_usage": True})
    after = server.metrics()
    growth = {name: after[name] - before[name] for name in after}
    usage = events[-2]["usage"]
    assert usage["completion_tokens"] == 300
    speed = (300 - 1) / growth["vllm:request_decode_time_seconds_sum"]
    assert speed == pytest.approx(decode_speed(server.engine.card, CELL, task), rel=1e-9)
    prefill = usage["prompt_tokens"] / growth["vllm:request_prefill_time_seconds_sum"]
    assert prefill == pytest.approx(8000, rel=1e-9)
    assert growth["vllm:request_decode_time_seconds_count"] == 1
    assert growth["vllm:time_to_first_token_seconds_sum"] == pytest.approx(
        usage["prompt_tokens"] / 8000
    )
    assert growth["vllm:generation_tokens_total"] == 300
    assert growth['vllm:request_success_total{,finished_reason="length"}'] == 1
    drafts = growth["vllm:spec_decode_num_drafts_total"]
    assert growth["vllm:spec_decode_num_draft_tokens_total"] == 2 * drafts
    per_position = [
        growth[f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{,position="{at}"}}'] / drafts
        for at in range(2)
    ]
    shares = server.engine.card.speed.acceptance[task][:2]
    assert per_position == pytest.approx(shares, abs=0.02)


def test_stream_carries_several_tokens_a_chunk(server: Launched) -> None:
    events = server.stream(CODE, max_tokens=100)
    assert events[-1] == "[DONE]"
    opening, *chunks = [event for event in events if isinstance(event, dict)]
    assert opening["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert 30 < len(chunks) < 60
    assert all("usage" not in chunk for chunk in chunks)
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["length"]
    streamed = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks)
    messages = [{"role": "user", "content": CODE}]
    body = {"model": "served", "messages": messages, "max_tokens": 100}
    _, whole = server.request("POST", "/v1/chat/completions", body)
    assert streamed.startswith("def ")
    assert streamed.encode("unicode_escape").decode().replace('"', '\\"') in whole


def test_cached_tokens_are_told_and_cost_nothing(server: Launched) -> None:
    prompt = list(range(5000, 6000))
    first = server.complete(prompt, max_tokens=1)["usage"]
    before = server.metrics()
    second = server.complete(prompt, max_tokens=1)["usage"]
    after = server.metrics()
    assert first["prompt_tokens_details"] == {"cached_tokens": 0}
    assert second["prompt_tokens_details"] == {"cached_tokens": 992}
    name = "vllm:request_prefill_time_seconds_sum"
    assert after[name] - before[name] == pytest.approx(8 / 8000)
    name = "vllm:prefix_cache_hits_total"
    assert after[name] - before[name] == 992


def test_window_is_filled_to_the_last_token_and_no_further(server: Launched) -> None:
    prompt = list(range(20000, 20000 + 16368))
    usage = server.complete(prompt, max_tokens=16, ignore_eos=True)["usage"]
    assert usage["total_tokens"] == 16384
    cut = server.complete(prompt, max_tokens=17, ignore_eos=True)["usage"]
    assert cut["completion_tokens"] == 16
    body = {"prompt": prompt + prompt[:17], "max_tokens": 1}
    status, text = server.request("POST", "/v1/completions", body)
    error = json.loads(text)["error"]
    assert (status, error["code"], error["type"]) == (400, 400, "BadRequestError")
    assert "maximum context length is 16384 tokens" in error["message"]
    assert error["message"].endswith("(parameter=input_tokens, value=16385)")


def test_answer_ends_before_a_text(server: Launched) -> None:
    whole = server.complete(CODE, max_tokens=60)["choices"][0]["text"]
    stop = whole[40:46]
    answer = server.complete(CODE, max_tokens=60, stop=["no such text", stop])
    (choice,) = answer["choices"]
    assert choice["text"] == whole[: whole.index(stop)]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    assert answer["usage"]["completion_tokens"] < 60


def test_histograms_add_up(server: Launched) -> None:
    before = server.metrics()
    server.complete("Explain tides.", max_tokens=50)
    after = server.metrics()
    growth = {name: after[name] - before[name] for name in after}
    steps = growth["vllm:spec_decode_num_drafts_total"]
    assert growth["vllm:inter_token_latency_seconds_count"] == steps
    assert growth["vllm:iteration_tokens_total_count"] == steps + 1
    assert growth["vllm:request_generation_tokens_sum"] == 50
    assert growth["vllm:request_params_max_tokens_sum"] == 50
    prompt = growth["vllm:prompt_tokens_total"]
    computed = growth['vllm:prompt_tokens_by_source_total{,source="local_compute"}']
    assert computed == growth["vllm:request_prefill_kv_computed_tokens_sum"]
    assert computed + growth["vllm:prompt_tokens_cached_total"] == prompt
    decode = growth["vllm:request_decode_time_seconds_sum"]
    assert growth["vllm:inter_token_latency_seconds_sum"] == pytest.approx(decode)
    per_token = growth["vllm:request_time_per_output_token_seconds_sum"]
    assert per_token == pytest.approx(decode / 49)
    assert growth['vllm:request_generation_tokens_bucket{,le="20.0"}'] == 0
    assert growth['vllm:request_generation_tokens_bucket{,le="50.0"}'] == 1


def test_same_cell_gives_the_same_figures_again(tmp_path: Path) -> None:
    seen = []
    for attempt in range(2):
        card = card_file(tmp_path, speed={"noise": 0.02})
        with launched(card, tmp_path / f"{attempt}.log") as server:
            assert server.ready()
            text = server.complete(CODE, max_tokens=80)["choices"][0]["text"]
            seen.append((text, server.metrics()["vllm:request_decode_time_seconds_sum"]))
    assert seen[0] == seen[1]
    formula = 79 / decode_speed(server.engine.card, CELL, "code")
    assert seen[0][1] != pytest.approx(formula, rel=1e-6)
    assert seen[0][1] == pytest.approx(formula, rel=0.07)


def test_client_waits_the_scaled_time(tmp_path: Path) -> None:
    card = card_file(tmp_path, time={"scale": 0.05})
    with launched(card, tmp_path / "log", dataclasses.replace(CELL, depth=0)) as server:
        began = time.monotonic()
        assert server.ready()
        assert time.monotonic() - began > 30 * 0.05
        began = time.monotonic()
        server.complete(CODE, max_tokens=1001)  # 1000 steps of 10 ms
        assert 0.5 <= time.monotonic() - began < 8
        assert "vllm:spec_decode_num_drafts_total" not in server.metrics()


@pytest.mark.parametrize(
    ("cell", "code", "failure", "phase"),
    [
        (Cell(2, 65536, True, 0.9), 1, FailureClass.KV_TOO_SMALL, Phase.ALLOCATE_KV),
        (Cell(0, 4096, False, 0.45), 1, FailureClass.KV_NONE, Phase.ALLOCATE_KV),
        (Cell(0, 4096, False, 0.98), 1, FailureClass.UTILIZATION_ABOVE_FREE, Phase.CONFIGURE),
        (Cell(0, 70000, False, 0.9), 1, FailureClass.CONTEXT_EXCEEDS_MODEL, Phase.CONFIGURE),
        (Cell(0, 4096, False, 1.2), 1, FailureClass.INVALID_ARGUMENT, Phase.CONFIGURE),
    ],
)
def test_refusals_are_read_as_what_they_are(
    tmp_path: Path, cell: Cell, code: int, failure: FailureClass, phase: Phase
) -> None:
    with launched(card_file(tmp_path), tmp_path / "log", cell) as server:
        assert not server.ready()
        reading = server.reading()
        assert server.process.returncode == code
        assert reading.failure is not None
        assert (reading.failure.failure_class, reading.failure.phase) == (failure, phase)
        expected = simulate_start(server.engine.card, cell)
        if expected.failure is not None and cell.utilization <= 1:
            assert expected.failure.failure_class is failure
            assert expected.failure.phase is phase
            assert reading.failure.evidence == expected.failure.evidence
            assert reading.facts.max_context_estimate == expected.facts.max_context_estimate


def test_graphs_that_do_not_fit(tmp_path: Path) -> None:
    card = card_file(tmp_path, memory={"graphs_counted": False})
    with launched(card, tmp_path / "log", dataclasses.replace(CELL, utilization=0.95)) as server:
        assert not server.ready()
        failure = server.reading().failure
        assert failure is not None
        assert failure.failure_class is FailureClass.OOM_GRAPH_CAPTURE
        assert failure.phase is Phase.CAPTURE_GRAPHS


def test_taken_port(tmp_path: Path) -> None:
    card = card_file(tmp_path)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with launched(card, tmp_path / "log", port=port) as server:
            failure = server.reading().failure
            assert failure is not None
            assert failure.failure_class is FailureClass.PORT_IN_USE
            assert server.process.returncode == 1


def test_automatic_window(tmp_path: Path) -> None:
    with launched(card_file(tmp_path), tmp_path / "log", max_model_len="auto") as server:
        assert server.ready()
        reading = server.engine.read_log(server.log)
        assert reading.facts.auto_context == 35824  # (2.45 - 0.3) / 0.06, whole blocks
        told = "Auto-fit max_model_len: reduced from 65536 to 35824 to fit in available KV cache"
        assert told in server.log.read_text()
        assert '"max_model_len":35824' in server.request("GET", "/v1/models")[1]


def test_unknown_card_is_one_line(tmp_path: Path) -> None:
    with launched(card_file(tmp_path), tmp_path / "log", simulated_card="tiny-8gb") as server:
        assert server.process.wait(PATIENCE_S) == 2
        text = server.log.read_text()
        assert text.count("\n") == 1
        assert "did you mean tiny-8gib?" in text


def test_sigterm_ends_the_tree(tmp_path: Path) -> None:
    with launched(card_file(tmp_path), tmp_path / "log") as server:
        assert server.ready()
        children = server.children()
        assert all(alive(pid) for pid in children)
        os.kill(server.process.pid, signal.SIGTERM)
        assert server.process.wait(PATIENCE_S) == 0
        assert gone(children)
        reading = server.reading()
        assert (reading.started, reading.failure) == (True, None)


def test_sigterm_while_loading_is_swallowed_once(tmp_path: Path) -> None:
    card = card_file(tmp_path, time={"load_s": 50.0, "scale": 0.1})
    with launched(card, tmp_path / "1.log") as server:
        server.children()
        os.kill(server.process.pid, signal.SIGTERM)
        assert server.ready()
    card = card_file(tmp_path, time={"load_s": 6000.0, "scale": 0.1})
    with launched(card, tmp_path / "2.log") as server:
        children = server.children()
        os.kill(server.process.pid, signal.SIGTERM)
        time.sleep(0.1)
        assert server.process.poll() is None
        deadline = time.monotonic() + PATIENCE_S
        while server.process.poll() is None:  # two at one moment may count as one
            assert time.monotonic() < deadline
            os.kill(server.process.pid, signal.SIGTERM)
            time.sleep(0.1)
        assert server.process.returncode == -signal.SIGTERM
        assert gone(children)


def test_shared_memory_is_there_while_it_serves_and_gone_with_an_orderly_end(
    tmp_path: Path,
) -> None:
    with launched(card_file(tmp_path), tmp_path / "log") as server:
        assert server.ready()
        (segment,) = server.shared
        assert re.fullmatch(r"psm_[0-9a-f]{8}", segment.name)
        file = Path("/dev/shm") / segment.name
        assert file.stat().st_ino == segment.inode
        for pid in server.children():  # both map it
            assert segment.name in Path(f"/proc/{pid}/maps").read_text()
        server.process.terminate()
        assert server.process.wait(PATIENCE_S) == 0
        assert not file.exists()


def test_shared_memory_stays_when_all_are_killed(tmp_path: Path) -> None:
    with launched(card_file(tmp_path), tmp_path / "log") as server:
        assert server.ready()
        (segment,) = server.shared
        pids = server.members()
        os.killpg(server.process.pid, signal.SIGKILL)
        server.process.wait(PATIENCE_S)
        assert gone(pids)
        assert (Path("/dev/shm") / segment.name).exists()


def test_shared_memory_is_gone_after_a_start_that_is_refused(tmp_path: Path) -> None:
    small = Cell(2, CELL.context, True, 0.6)
    # It is there for two seconds, and looked for all the while.
    card = card_file(tmp_path, time={"load_s": 20.0, "scale": 0.1})
    with launched(card, tmp_path / "log", small) as server:
        assert not server.ready()
        assert server.reading().failure is not None
        (segment,) = server.shared
        assert not (Path("/dev/shm") / segment.name).exists()
