"""The three forms of a cell: what a shell, a YAML reader and docker make of them."""

import json
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from vllm_frontier.characters import unprintable
from vllm_frontier.config import compose_sweep
from vllm_frontier.engine.arguments import render
from vllm_frontier.engine.serving import MODULE, Serving, image, serving
from vllm_frontier.grid import Axis, Cell
from vllm_frontier.report.recommend.serving import config_file, container, shell
from vllm_frontier.report.recommend.serving.forms import Forms, forms, notes
from vllm_frontier.spec import SweepSpec

CELL = Cell(3, 8192, False, 0.9)
SPECULATION = '{"method":"mtp","num_speculative_tokens":3}'


def spec(*overrides: str, sweep: str = "demo-cpu", **engine: Any) -> SweepSpec:
    composed = compose_sweep(sweep, list(overrides)).spec
    return replace(composed, engine=replace(composed.engine, **engine))


def gpu(*overrides: str, model: str = "org/model", **engine: Any) -> SweepSpec:
    words = (f"model.id={model}", "card=rtx5090", *overrides)
    return spec(*words, sweep="rtx5090-qwen3.8-27b-nvfp4", **engine)


def of(spec: SweepSpec, cell: Cell = CELL, version: str | None = "0.32.0") -> Forms:
    return forms(serving(spec, cell), headline="demo, fastest", file="f.yaml", version=version)


def split(text: str) -> list[str]:
    """The words of a command, as a shell has them."""
    return shlex.split(text.replace(" \\\n", " "))  # which shlex takes for a word


def in_bash(text: str, program: str, folder: Path, **variables: str) -> tuple[list[str], dict]:
    """The words and the environment with which a shell calls a program."""
    folder.mkdir(exist_ok=True)
    stub = folder / Path(program).name
    stub.write_text(
        f"#!{sys.executable}\n"
        "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))\n"
    )
    stub.chmod(0o755)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": "/root", **variables}
    done = subprocess.run(
        ["bash", "-c", text], capture_output=True, text=True, env=environment, cwd=folder,
        check=False, timeout=30,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    words, seen = json.loads(done.stdout)
    return words, seen


# The command


def test_a_cpu_build_is_called_by_its_module_with_its_environment(tmp_path: Path) -> None:
    spaced = spec('model.args={chat_template: "it\'s $HOME.jinja"}', python="/no/such/python")
    spaced = replace(spaced, model=replace(spaced.model, id="/models/my model's"))
    told = of(spaced)
    assert told.command.splitlines()[0].startswith("PATH=/no/such:")
    assert f"/no/such/python -m {MODULE} \\" in told.command
    text = told.command.replace("/no/such/python", "python")
    words, seen = in_bash(text, "python", tmp_path / "bin")
    assert words == [
        *("-m", MODULE, "--model", "/models/my model's", "--max-model-len", "8192"),
        *("--kv-cache-memory-bytes", "217969590", "--enforce-eager"),
        *("--speculative-config", SPECULATION, "--dtype", "float32"),
        *("--chat-template", "it's $HOME.jinja", "--max-num-seqs", "1"),
    ]
    assert seen["PATH"].startswith("/no/such:")
    assert (seen["HF_HUB_OFFLINE"], seen["VLLM_USE_AOT_COMPILE"]) == ("1", "0")
    assert told.environment == {"VLLM_USE_AOT_COMPILE": "0", "HF_HUB_OFFLINE": "1"}


def test_the_interpreter_is_named_so_that_this_shell_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    first = serving(spec(), CELL)
    assert (first.launcher[0], first.path) == ("python", None)
    # `make demo` activates nothing: the name would be another interpreter's, or none's.
    monkeypatch.setenv("PATH", str(tmp_path))
    other = serving(spec(), CELL)
    assert other.launcher[0] == sys.executable
    assert other.path == str(Path(sys.executable).parent)


def test_a_gpu_build_is_called_by_its_script(tmp_path: Path) -> None:
    assert of(gpu()).command.splitlines()[0] == "vllm serve org/model \\"
    assert "--gpu-memory-utilization 0.9" in of(gpu()).command
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    without = serving(gpu(python=str(python)), CELL)
    assert without.launcher == (str(python), "-m", MODULE)
    python.with_name("vllm").touch()
    beside = serving(gpu(python=str(python)), CELL)
    assert beside.launcher == (str(python.with_name("vllm")), "serve")
    assert shell.command(beside).startswith(
        f'PATH={python.parent}:"$PATH" \\\n{python.parent}/vllm'
    )


def test_a_simulated_sweep_gives_the_commands_of_the_real_engine() -> None:
    simulated = spec("engine=simulated", sweep="rtx5090-qwen3.8-27b-nvfp4")
    told = of(simulated, version=None)
    assert told.command.startswith("vllm serve qwen3.8-27b-nvfp4 \\\n    --max-model-len 8192")
    assert told.docker is not None
    assert "vllm/vllm-openai:latest" in told.docker
    assert "simulated" not in f"{told.command}{told.docker}{told.config_command}"


def test_further_axes_are_arguments() -> None:
    grid = replace(spec().grid, extra=(Axis("max_num_batched_tokens", (2048, 4096)),))
    cell = replace(CELL, extra=(("max_num_batched_tokens", 4096),))
    told = of(replace(spec(), grid=grid), cell)
    assert "--max-num-batched-tokens 4096" in told.command
    assert told.config is not None
    assert yaml.safe_load(told.config)["max-num-batched-tokens"] == 4096


def test_a_secret_is_named_and_must_be_there(tmp_path: Path) -> None:
    # An interpreter that is not there: what is pasted here must never start the real engine.
    hidden = spec(env={"HF_TOKEN": "***", "A": "b c"}, python="/no/such/python")
    told = of(hidden)
    assert told.environment == {"HF_TOKEN": None, "A": "b c"}
    assert "***" not in f"{told.command}{told.config}{told.config_command}{told.docker}"
    text = told.command.replace("PATH=/no/such:", "PATH=").replace("/no/such/python", "python")
    _, seen = in_bash(text, "python", tmp_path / "bin", HF_TOKEN="hf-1")
    assert (seen["HF_TOKEN"], seen["A"]) == ("hf-1", "b c")
    refused = subprocess.run(
        ["bash", "-c", told.command], capture_output=True, text=True, env={}, check=False
    )
    assert refused.returncode != 0
    assert "HF_TOKEN" in refused.stderr
    assert told.docker is not None
    assert "-e HF_TOKEN " in told.docker
    assert list(notes(serving(hidden, CELL), "0.32.0")) == [
        "set HF_TOKEN in your shell first: secrets are not written down"
    ]


def test_the_command_of_a_sweep_is_its_own() -> None:
    template = (
        "docker run --rm --init --network host --gpus '\"device={gpus}\"' "
        "-v /models:/models vllm/vllm-openai:v0.32.0 --model {model} {args}"
    )
    own = gpu(model="/models/m", command=template)
    told = of(own, version="command-12345678")
    assert (told.config, told.config_file, told.config_command) == (None, None, None)
    assert told.docker == told.command
    words = split(told.command)
    assert words[words.index("--gpus") + 1] == '"device=0"'
    assert words[words.index("--max-model-len") + 1] == "8192"
    assert "--enable-prompt-tokens-details" not in words
    assert not {"--port", "--served-model-name", "--host"} & set(words)
    wrapped = of(gpu(model="/m", command="bash -c 'exec vllm serve {model} --port {port} {args}'"))
    assert wrapped.docker is None
    assert "--port 8000 --max-model-len 8192" in split(wrapped.command)[2]


# The config file


def as_vllm_reads(content: str) -> list[list[str]]:
    """The options that `vllm serve --config` makes of a file."""
    words: list[list[str]] = []
    for key, value in yaml.safe_load(content).items():
        if isinstance(value, bool):
            words.append([f"--{key}" if value else f"--no-{key}"])
        elif isinstance(value, list):
            words += [[f"--{key}", *(str(item) for item in value)]] if value else []
        else:
            assert not isinstance(value, dict), "only newer versions read these"
            words.append([f"--{key}", str(value)])
    return words


def test_the_config_file_says_what_the_command_says() -> None:
    told = of(spec("model.args={enable_prefix_caching: false, stop: [a, b]}"))
    assert told.config is not None
    assert yaml.safe_load(told.config) == {
        "model": spec().model.id,
        "max-model-len": 8192,
        "kv-cache-memory-bytes": 217969590,
        "enforce-eager": True,
        "speculative-config": SPECULATION,
        "dtype": "float32",
        "enable-prefix-caching": False,
        "stop": ["a", "b"],
        "max-num-seqs": 1,
    }
    first, second = told.config.splitlines()[:2]
    assert first == "# demo, fastest"
    assert second == "# Needs the environment VLLM_USE_AOT_COMPILE=0 HF_HUB_OFFLINE=1"
    assert told.config_command is not None
    assert told.config_command.endswith(f"-m {MODULE} --config f.yaml")


# What cannot be printed is written as `shlex` does not read it; a shell does, in another test.
PRINTABLE = st.characters(
    exclude_characters=[each for each in map(chr, range(2**16)) if unprintable(each, lines=True)]
)
SCALARS = st.one_of(
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(PRINTABLE, max_size=12),
)
VALUES = st.one_of(
    st.none(),
    SCALARS,
    st.lists(SCALARS.filter(lambda each: not str(each).startswith("-")), max_size=3),
    st.dictionaries(st.text(PRINTABLE, max_size=4), st.integers(), max_size=2),
    st.lists(
        st.dictionaries(st.text(PRINTABLE, max_size=4), st.integers(), max_size=2), max_size=2
    ),
)
NAMES = st.from_regex(r"[a-z][a-z0-9]{0,5}(_[a-z]{1,3})?", fullmatch=True)


@given(st.dictionaries(NAMES.filter(lambda name: name != "model"), VALUES, max_size=4))
def test_config_file_and_command_come_to_the_same_arguments(arguments: dict[str, Any]) -> None:
    served = replace(DEMO, arguments=arguments)
    wanted = [["--model", DEMO.model], *([*each] for each in _options(arguments))]
    file = as_vllm_reads(config_file.content(served, "demo"))
    words = split(config_file.command(served, "f.yaml"))
    after = words[words.index("f.yaml") + 1 :]
    beside = [word.split("=", 1) for word in after]
    assert sorted([*file, *beside]) == sorted(wanted)
    command = split(shell.command(served))
    start = command.index("--model")
    assert command[start:] == ["--model", DEMO.model, *render(arguments)]


def _options(arguments: dict[str, Any]) -> list[list[str]]:
    """What each argument comes to on a command line."""
    found = []
    for name, value in arguments.items():
        words = list(render({name: value}))
        if words and "=" in words[0]:
            words = words[0].split("=", 1)
        found += [words] if words else []
    return found


DEMO: Serving = serving(spec(), CELL)


# The container


def test_a_container_finds_a_local_model_under_its_own_path(tmp_path: Path) -> None:
    folder = tmp_path / "my models" / "m"
    folder.mkdir(parents=True)
    told = of(spec(f"model.id='{folder}'"))
    assert told.docker is not None
    words, _ = in_bash(told.docker, "docker", tmp_path / "bin")
    at = next(i for i, word in enumerate(words) if word.startswith("vllm/"))
    assert words[at].split(":")[0] == "vllm/vllm-openai-cpu"
    assert words[at].split(":")[1].startswith("v0.32.0-")
    assert words[:at] == [
        *("run", "--rm", "--ipc=host", "-p", "8000:8000", "-v", f"{folder}:{folder}:ro"),
        *("-e", "VLLM_USE_AOT_COMPILE=0", "-e", "HF_HUB_OFFLINE=1"),
    ]
    assert words[at + 1 :] == ["--model", str(folder), *render(serving(spec(), CELL).arguments)]


def test_a_container_shares_the_cache_of_a_hub_model(tmp_path: Path) -> None:
    told = of(gpu())
    assert told.docker is not None
    words, _ = in_bash(told.docker, "docker", tmp_path / "bin")
    assert words[:10] == [
        *("run", "--rm", "--gpus", "all", "--ipc=host", "-p", "8000:8000"),
        *("-v", "/root/.cache/huggingface:/root/.cache/huggingface", "-e"),
    ]
    assert words[10:12] == ["HF_TOKEN", "vllm/vllm-openai:v0.32.0"]
    elsewhere, _ = in_bash(told.docker, "docker", tmp_path / "bin", HF_HOME="/big disk/hf")
    assert "/big disk/hf:/root/.cache/huggingface" in elsewhere
    set_there = of(gpu(env={"HF_HOME": "/big disk/hf"})).docker
    assert set_there is not None
    words, _ = in_bash(set_there, "docker", tmp_path / "bin")
    assert "/big disk/hf:/root/.cache/huggingface" in words
    assert not any(word.startswith("HF_HOME") for word in words)


def test_what_links_point_to_is_mounted_too(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--o--m" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    template = tmp_path / "chat:1.jinja"
    template.touch()
    drafter = tmp_path / "drafter"
    drafter.mkdir()
    served = serving(
        gpu(
            "model.speculation.method=eagle3",
            f"model.speculation.model={drafter}",
            model=str(snapshot),
            args={"chat_template": str(template), "root_path": "/v1"},
        ),
        CELL,
    )
    words = split(container.command(served, "image"))
    mounts = [word for at, word in enumerate(words) if words[at - 1] in ("-v", "--mount")]
    hub = snapshot.parent.parent
    assert mounts == [
        f"type=bind,src={template},dst={template},readonly",
        f"{drafter}:{drafter}:ro",
        f"{hub}:{hub}:ro",
    ]
    assert "HF_TOKEN" not in words


@pytest.mark.parametrize(
    ("version", "cpu", "machine", "wanted"),
    [
        ("0.32.0", False, "x86_64", "vllm/vllm-openai:v0.32.0"),
        ("0.10.1.1", False, "aarch64", "vllm/vllm-openai:v0.10.1.1"),
        ("0.32.0+cu129", False, "x86_64", "vllm/vllm-openai:v0.32.0"),
        ("0.32.0rc1", False, "x86_64", "vllm/vllm-openai:v0.32.0rc1"),
        ("0.32.0+cpu", True, "aarch64", "vllm/vllm-openai-cpu:v0.32.0-arm64"),
        (None, False, "x86_64", "vllm/vllm-openai:latest"),
        ("0.32.1.dev7+gabc", False, "x86_64", None),
        ("command-12345678", False, "x86_64", None),
    ],
)
def test_the_image_has_the_measured_version(
    version: str | None, cpu: bool, machine: str, wanted: str | None
) -> None:
    assert image(version, cpu=cpu, machine=machine) == wanted


def test_a_version_without_an_image_has_no_container() -> None:
    served = serving(gpu(), CELL)
    told = forms(served, headline="", file="f.yaml", version="0.32.1.dev7+gabc")
    assert told.docker is None
    assert list(notes(served, "0.32.1.dev7+gabc")) == [
        "vLLM 0.32.1.dev7+gabc is no release, so there is no image of it for docker"
    ]
