"""How long something takes, in words."""

from __future__ import annotations


def about(seconds: float) -> str:
    """A duration as a person would say it: `about 40 s`, `about 12 min`, `about 3 h 05 min`."""
    if seconds < 90:
        return f"about {max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"about {minutes} min"
    return f"about {minutes // 60} h {minutes % 60:02} min"
