"""How long a request may take: from its size and from what the server has shown it can do.

One limit for all would be too short for a long window on a slow card and would wait for ever for
a short answer of a server that hangs.
"""

from __future__ import annotations

from dataclasses import dataclass

from vllm_frontier.outcome import Run

# A server that has shown its speed may drop to this share of it.
SLOWDOWN = 0.1
_SPARE_S = 60.0
_SPARE_ONCE_MEASURED_S = 30.0


@dataclass(frozen=True, slots=True)
class Pace:
    """The slowest speeds at which a server is still believed to work.

    Attributes:
        prefill_tok_s: tokens of a prompt per second that passes.
        decode_tok_s: tokens of an answer per second that passes.
        spare_s: seconds that every request may take beside.
        fixed_s: a limit that the user set; it replaces all of this.
    """

    prefill_tok_s: float = 100.0
    decode_tok_s: float = 1.0
    spare_s: float = _SPARE_S
    fixed_s: float | None = None

    def limit_s(self, prompt_tokens: int, answer_tokens: int) -> float:
        """Seconds that pass at most until such a request is answered."""
        if self.fixed_s is not None:
            return self.fixed_s
        return self.spare_s + prompt_tokens / self.prefill_tok_s + answer_tokens / self.decode_tok_s

    def after(self, fill: Run, *, time_scale: float, fixed_s: float | None) -> Pace:
        """The pace to expect of a server that has served a full window.

        Args:
            fill: the run that filled the window; its speeds are in the server's seconds.
            time_scale: seconds that pass per second of the server's time.
            fixed_s: a limit that the user set for the requests to come.
        """

        def slowest(shown: float | None, floor: float) -> float:
            return floor if shown is None else max(floor, shown * SLOWDOWN / time_scale)

        return Pace(
            slowest(fill.prefill_tok_s, self.prefill_tok_s),
            # Pieces that pile up before they are read make the client's clock far too fast.
            slowest(fill.decode_tok_s_server, self.decode_tok_s),
            _SPARE_ONCE_MEASURED_S,
            fixed_s,
        )


SLOWEST = Pace()
"""What a server on a card is granted that has not shown its speed yet."""

SLOWEST_ON_CPU = Pace(prefill_tok_s=10.0, decode_tok_s=0.5)
"""The same for a server on a CPU."""
