"""How tests are spread over workers when they run side by side, and how examples are drawn.

With `pytest -n 2` each file stays on one worker, for its fixtures. Files that share costly fixtures
stay together, and so do those that launch real vLLM: each launch alone keeps every core busy.
"""

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

# The same examples every time, and none that fails because this machine is slow. Others are drawn
# with `--hypothesis-profile default`.
settings.register_profile(
    "same",
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("same")

TOGETHER = ("tests/engine/", "tests/kills/")


def group_of(nodeid: str) -> str:
    """The tests with which a test shares its worker."""
    file = nodeid.partition("::")[0]
    return next((folder for folder in TOGETHER if file.startswith(folder)), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> "LoadScopeScheduling":
    from xdist.scheduler import LoadScopeScheduling

    class InGroups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    config.option.loadscopereorder = False  # what takes longest comes first as it is
    return InGroups(config, log)
