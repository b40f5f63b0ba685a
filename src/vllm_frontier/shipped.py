"""Where the files that come with the program lie."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def shipped(folder: str) -> Path:
    """A shipped folder (`conf`, `sweeps`, `models`): in the package, else in the checkout.

    The wheel carries `conf/` and `sweeps/` inside the package; in a checkout they lie at the
    top.
    """
    inside = PACKAGE / folder
    return inside if inside.is_dir() else PACKAGE.parents[1] / folder
