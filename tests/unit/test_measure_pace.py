"""How long a request may take follows from its size and from what the server has shown."""

from __future__ import annotations

import pytest

from vllm_frontier.measure.pace import SLOWEST, SLOWEST_ON_CPU, Pace
from vllm_frontier.outcome import Run

# The client's clock saw all of the answer in one burst: it does not count.
FILL = Run("fill", 0, "fill", prefill_tok_s=5000.0, decode_tok_s=9999.0, decode_tok_s_server=80.0)


def test_before_anything_is_known_the_limit_grows_with_the_window() -> None:
    assert SLOWEST.limit_s(8192, 16) == pytest.approx(60 + 8192 / 100 + 16)
    assert SLOWEST.limit_s(131072, 16) == pytest.approx(60 + 131072 / 100 + 16)


def test_a_cpu_is_granted_more() -> None:
    assert SLOWEST_ON_CPU.limit_s(8192, 16) == pytest.approx(60 + 8192 / 10 + 16 / 0.5)


def test_a_server_that_has_shown_its_speed_may_drop_to_a_tenth() -> None:
    pace = SLOWEST.after(FILL, time_scale=1.0, fixed_s=None)
    assert pace.limit_s(1000, 512) == pytest.approx(30 + 1000 / 500 + 512 / 8)


def test_a_scaled_server_passes_its_seconds_quicker() -> None:
    pace = SLOWEST.after(FILL, time_scale=0.01, fixed_s=None)
    assert pace.limit_s(1000, 512) == pytest.approx(30 + 1000 / 50000 + 512 / 800)


def test_a_slow_server_is_granted_what_every_server_is() -> None:
    slow = Run("fill", 0, "fill", prefill_tok_s=60.0, decode_tok_s=9999.0)
    pace = SLOWEST.after(slow, time_scale=1.0, fixed_s=None)
    assert pace.limit_s(1000, 100) == pytest.approx(30 + 1000 / 100 + 100)


def test_a_limit_that_was_set_is_kept_whatever_the_size() -> None:
    assert Pace(fixed_s=7.0).limit_s(10**6, 10**6) == 7.0
    pace = Pace(fixed_s=7.0).after(FILL, time_scale=1.0, fixed_s=None)
    assert pace.fixed_s is None
