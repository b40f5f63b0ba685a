"""What several of these tests need."""

import os
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "unit/fake_nvml.c"


@pytest.fixture
def driver(tmp_path: Path) -> dict[str, str]:
    """An environment in which NVML shows two cards, 0.6 GiB in use on each.

    The file that FAKE_USED names says how much is in use.
    """
    library = tmp_path / "lib"
    library.mkdir()
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-o", library / "libnvidia-ml.so.1", SOURCE], check=True
    )
    used = tmp_path / "used"
    used.write_text("0.6")
    return os.environ | {"LD_LIBRARY_PATH": str(library), "FAKE_USED": str(used)}
