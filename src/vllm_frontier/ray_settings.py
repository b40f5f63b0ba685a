"""How Ray is to behave, told through the environment before it is imported."""

from __future__ import annotations

import os
import secrets

# No usage statistics, no loggers that write beside our files, no change of the working
# directory; signals stay ours.
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
}


def apply(*, own_cluster: bool) -> None:
    """Set what Ray reads when it is imported; what the user has set stays.

    Args:
        own_cluster: whether this process starts a cluster of its own. Other users of the host
            must not reach that one, so it gets a token that no file holds.
    """
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    if own_cluster:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        os.environ.pop("RAY_AUTH_TOKEN_PATH", None)
