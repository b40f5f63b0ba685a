"""Waiting for a card and a port, and finding a port."""

import socket
from pathlib import Path

import pytest

from vllm_frontier.launch.drain import DrainResult, wait_drained
from vllm_frontier.launch.ports import free_port, is_released


class Clock:
    """Seconds that pass only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def drain(
    readings: list[float | None],
    *,
    baseline: float | None = 1.0,
    timeout_s: float = 10.0,
    port: int | None = None,
) -> DrainResult:
    clock = Clock()
    left = iter(readings)
    return wait_drained(
        lambda: next(left, readings[-1]),
        baseline_gib=baseline,
        tolerance_gib=0.5,
        timeout_s=timeout_s,
        port=port,
        sleep=clock.sleep,
        clock=clock,
    )


def test_it_waits_until_memory_is_back_within_the_tolerance() -> None:
    result = drain([20.0, 9.0, 1.51, 1.5])
    assert (result.ok, result.used_gib) == (True, 1.5)
    assert result.waited_s == pytest.approx(0.6)


def test_less_than_the_baseline_is_free_too() -> None:
    assert drain([0.2]) == DrainResult(True, 0.0, 0.2, True, True)


def test_memory_that_does_not_come_back_is_told_after_the_deadline() -> None:
    result = drain([8.0], timeout_s=3.1)
    assert (result.ok, result.memory_ok, result.port_ok) == (False, False, True)
    assert result.used_gib == 8.0
    assert result.waited_s == pytest.approx(3.1, abs=0.01)


def test_memory_that_cannot_be_told_does_not_hold_a_launch_back() -> None:
    assert drain([None]).ok
    assert drain([25.0], baseline=None).ok


def test_the_state_is_read_once_even_without_time() -> None:
    assert drain([1.0], timeout_s=0.0) == DrainResult(True, 0.0, 1.0, True, True)
    assert drain([2.0], timeout_s=0.0) == DrainResult(False, 0.0, 2.0, False, True)


def test_a_port_in_use_holds_a_launch_back_until_it_is_released() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        result = drain([1.0], port=port, timeout_s=1.0)
        assert (result.ok, result.memory_ok, result.port_ok) == (False, True, False)
    assert drain([1.0], port=port).ok


def test_connections_that_wait_out_their_time_do_not_count() -> None:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = server.accept()
        accepted.close()  # the side that closes first keeps the port for a minute
        assert client.recv(1) == b""
        client.close()
    waiting = f":{port:04X} "
    lines = Path("/proc/net/tcp").read_text().splitlines()
    states = [line.split()[3] for line in lines if line.split()[1].endswith(waiting.strip())]
    assert states == ["06"]  # TIME_WAIT
    assert is_released(port)


def test_a_free_port_lies_below_those_of_outgoing_connections_and_can_be_bound() -> None:
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = {free_port() for _ in range(50)}
    assert len(ports) > 40
    for port in ports:
        assert 20_000 <= port <= 32_000
        assert port < first
        with socket.socket() as server:
            server.bind(("127.0.0.1", port))


def test_a_port_that_is_listened_on_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as everywhere:
        port = next(port for port in iter(free_port, None) if is_released(port + 1))
        everywhere.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        everywhere.bind(("0.0.0.0", port))
        everywhere.listen()
        assert not is_released(port)
        monkeypatch.setattr("vllm_frontier.launch.ports._FIRST", port)
        monkeypatch.setattr("vllm_frontier.launch.ports._LAST", port + 1)
        assert {free_port() for _ in range(10)} == {port + 1}
