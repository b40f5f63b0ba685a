"""A driver library without a card, for tests: `fake_nvml.c`, loaded as the real one would be."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("fake_nvml.c")


def build(folder: Path, *flags: str) -> Path:
    """Compile it into a folder, which it returns."""
    library = folder / "libnvidia-ml.so.1"
    command = ["gcc", "-shared", "-fPIC", "-Wall", "-Werror", *flags, "-o", str(library)]
    subprocess.run([*command, str(SOURCE)], check=True)
    return folder


def ask(library: Path | None, code: str, **settings: object) -> Any:
    """Run code in a process that finds the library, and read the JSON it prints."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("FAKE_")}
    env |= {f"FAKE_{name.upper()}": str(value) for name, value in settings.items()}
    env.pop("LD_LIBRARY_PATH", None)
    if library is not None:
        env["LD_LIBRARY_PATH"] = str(library)
    head = "import json,dataclasses\nfrom vllm_frontier.telemetry import *\n"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", head + code],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
