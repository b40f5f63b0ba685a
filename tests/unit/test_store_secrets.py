"""No file of a sweep holds a secret, and a resumed sweep has it all the same."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from vllm_frontier.config import compose_sweep, spec_from_document
from vllm_frontier.engine.serving import serving
from vllm_frontier.errors import ConfigError
from vllm_frontier.identity import identify, with_secrets, without_secrets
from vllm_frontier.report.recommend.serving.forms import forms, notes
from vllm_frontier.store.rows import interrupted_row
from vllm_frontier.store.sweep_store import SweepStore

SECRET = "s3cr3t-of-the-house"
OTHER = "0ther-w0rds-f0r-it"
ENVIRONMENT = {
    "HF_TOKEN": SECRET,
    "VLLM_API_KEY": SECRET,
    "HTTPS_PROXY": f"http://u:{SECRET}@p",
    "DB_PASS": SECRET,
    "HTTP_AUTH": f"Bearer {SECRET}",
    "NOTE": f"see Bearer {SECRET}",
    "AUTHORIZATION": f"Bearer {SECRET}",
    "X_API_KEY": SECRET,
}

# Path of a key, its value, what is written down, and the variable it comes back from.
PLACES = [
    ("engine.env.HF_TOKEN", SECRET, "***", "HF_TOKEN"),
    ("engine.env.HTTPS_PROXY", f"http://u:{SECRET}@p", "http://***@p", "HTTPS_PROXY"),
    ("engine.args.hf_token", SECRET, "***", "HF_TOKEN"),
    ("engine.args.api-key", SECRET, "***", "VLLM_API_KEY"),
    ("model.args.api_key", SECRET, "***", "VLLM_API_KEY"),
    ("model.speculation.args.hf_token", SECRET, "***", "HF_TOKEN"),
    ("engine.args.loader", {"hf_token": SECRET, "n": 2}, {"hf_token": "***", "n": 2}, "HF_TOKEN"),
    ("engine.args.words", ["--api-key", SECRET, "-x"], ["--api-key", "***", "***"], None),
    ("engine.args.words", ["--hf-token", SECRET, "-x"], ["--hf-token", "***", "-x"], "HF_TOKEN"),
    ("engine.args.loader", f'{{"api_key": "{SECRET}", "n": 2}}', '{"api_key": "***", "n": 2}',
     "VLLM_API_KEY"),
    ("engine.args.address", f"https://hub?hf_token={SECRET}&n=1", "https://hub?hf_token=***&n=1",
     "HF_TOKEN"),
    ("engine.args.address", f"https://me:{SECRET}@hub/x", "https://***@hub/x", None),
    ("engine.env.DB_PASS", SECRET, "***", "DB_PASS"),
    ("engine.env.HTTP_AUTH", f"Bearer {SECRET}", "***", "HTTP_AUTH"),
    ("engine.env.NOTE", f"see Bearer {SECRET}", "see Bearer ***", "NOTE"),
    ("engine.args.extra_h", f"Authorization: Bearer {SECRET}", "Authorization: ***",
     "AUTHORIZATION"),
    ("engine.args.extra_h", f"Bearer {SECRET}", "Bearer ***", None),
    ("engine.args.headers", ["a: 1", f"X-Api-Key: {SECRET}"], ["a: 1", "X-Api-Key: ***"],
     "X_API_KEY"),
    ("engine.args.address", f"https://{SECRET}@hub/x", "https://***@hub/x", None),
    ("engine.command", f"docker run -e HF_TOKEN={SECRET} image {{args}}",
     "docker run -e HF_TOKEN=*** image {args}", "HF_TOKEN"),
    ("engine.command", f"vllm serve --api-key {SECRET} {{args}}",
     "vllm serve --api-key *** {args}", "VLLM_API_KEY"),
    ("engine.command", f"bash -c 'export HF_TOKEN={SECRET}; vllm serve {{args}}'",
     "bash -c 'export HF_TOKEN=***; vllm serve {args}'", "HF_TOKEN"),
]  # fmt: skip
ids = [f"{key} {number}" for number, (key, *_) in enumerate(PLACES)]


def placed(key: str, value: Any, document: dict[str, Any] | None = None) -> dict[str, Any]:
    """A document with a value at the path of a key."""
    result: dict[str, Any] = json.loads(json.dumps(document or {}))
    inner = result
    *above, last = key.split(".")
    for name in above:
        inner = inner.setdefault(name, {})
    inner[last] = value
    return result


def at(document: dict[str, Any], key: str) -> Any:
    value: Any = document
    for name in key.split("."):
        value = value[name]
    return value


@pytest.mark.parametrize(("key", "value", "masked", "variable"), PLACES, ids=ids)
def test_a_secret_is_written_as_stars_and_comes_back(
    key: str, value: Any, masked: Any, variable: str | None
) -> None:
    written = without_secrets(placed(key, value))
    assert at(written, key) == masked
    assert without_secrets(written) == written
    if variable is None:
        with pytest.raises(ConfigError, match=f"{key} holds a secret that was not written down"):
            with_secrets(written, ENVIRONMENT)
        return
    back = at(with_secrets(written, ENVIRONMENT), key)
    assert back == value
    for environment in ({}, {variable: ""}):
        with pytest.raises(ConfigError) as told:
            with_secrets(written, environment)
        assert str(told.value) == (
            f"{key}{'.hf_token' if isinstance(value, dict) else ''} holds a secret that was not "
            f"written down: set the variable {variable}, or give it again with "
            "`vllm-frontier run SWEEP KEY=VALUE --out DIR`"
        )


PLAIN = {
    "name": "demo",
    "model": {"id": "org/token-model", "args": {"trust_remote_code": True, "eos": None}},
    "engine": {
        "args": {"hf_token": True, "api_key": None, "max_num_batched_tokens": 4096},
        "env": {"HF_HOME": "/x", "TOKENIZERS_PARALLELISM": "false", "PWD": "/home", "BYPASS": "1"},
        "command": "docker run -e HF_TOKEN -p {port}:8000 image --model={model} {args}",
    },
    "workload": {"max_tokens": 64, "tasks": ["edit", "/a b/c.yaml"], "temperature": 0.5},
}


def test_what_is_no_secret_is_written_as_it_is() -> None:
    assert without_secrets(PLAIN) == PLAIN
    assert with_secrets(PLAIN, {}) == PLAIN


@given(st.text(), st.sampled_from(["HF_TOKEN", "api_key", "AWS_SECRET_ACCESS_KEY", "password"]))
def test_no_value_of_a_secret_key_is_written(text: str, name: str) -> None:
    assert without_secrets({"env": {name: text}}) == {"env": {name: "***" if text else ""}}


@given(st.from_regex(r"[A-Za-z0-9_./+-]{8,20}", fullmatch=True))
def test_no_named_value_inside_a_text_is_written(secret: str) -> None:
    for text in (
        f"HF_TOKEN={secret}",
        f"--api-key {secret}",
        f"run --hf-token={secret} x",
        f"sh -c 'A=1 HF_TOKEN=\"{secret}\" vllm'",
        f'{{"password": "{secret}"}}',
        f"{{password: {secret}}}",
        f"it's HF_TOKEN={secret}",
    ):
        assert without_secrets({"x": text}) == {"x": text.replace(secret, "***")}


SWEEP = ["engine=simulated", "engine.card_file=tiny-8gib", "grid.depth=[0]"]


def with_token(token: str) -> dict[str, Any]:
    document = compose_sweep("demo-cpu", SWEEP).document
    document = placed("engine.env.HF_TOKEN", token, document)
    document = placed("engine.args.loader", {"api_key": token}, document)
    return placed("engine.command", f"box -e HF_TOKEN={token} image {{args}}", document)


def test_no_file_of_the_folder_holds_it(tmp_path: Path) -> None:
    document = with_token(SECRET)
    spec = spec_from_document(document)
    assert spec.engine.env["HF_TOKEN"] == SECRET
    identity = identify(spec, "1")
    with SweepStore.create_or_open(tmp_path, document, identity)[0] as store:
        for cell in spec.grid.cells():
            attempt = store.new_attempt(identity.cell_id(cell))
            row = interrupted_row(spec, identity, cell, 1, started_at=1.0, engine_version="1")
            store.write_attempt(attempt, row, {})
        store.compact()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 5
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]
    document = yaml.safe_load((tmp_path / "sweep.yaml").read_text())
    assert document["config"]["engine"]["env"]["HF_TOKEN"] == "***"
    assert document["identity"]["cell"]["arguments"]["env"]["HF_TOKEN"] == "***"


def test_another_token_is_the_same_sweep(tmp_path: Path) -> None:
    one, two = (identify(spec_from_document(with_token(each)), "1") for each in (SECRET, OTHER))
    assert one == two
    SweepStore.create_or_open(tmp_path, with_token(SECRET), one)[0].close()
    store, resumed = SweepStore.create_or_open(tmp_path, with_token(OTHER), two)
    with store:
        assert resumed
        assert store.changed is None


def test_a_resumed_sweep_takes_it_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = with_token(SECRET)
    identity = identify(spec_from_document(document), "1")
    SweepStore.create_or_open(tmp_path, document, identity)[0].close()
    written = SweepStore.open(tmp_path).config

    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("VLLM_API_KEY", OTHER)
    with pytest.raises(ConfigError, match=r"set the variable HF_TOKEN, or give it again") as told:
        spec_from_document(written)
    assert "\n" not in str(told.value)
    assert spec_from_document(written, secrets=False).grid == spec_from_document(document).grid
    monkeypatch.setenv("HF_TOKEN", OTHER)
    spec = spec_from_document(written)
    assert spec.engine.env["HF_TOKEN"] == OTHER
    assert spec.engine.args["loader"] == {"api_key": OTHER}
    assert spec.engine.command == f"box -e HF_TOKEN={OTHER} image {{args}}"
    assert identify(spec, "1") == identity


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("engine.args.loader={a: {hf_token: x}}", "engine.args.loader.a.hf_token"),
        ("model.speculation.args.api_key=x", "model.speculation.args.api_key"),
        ("grid.extra.hf_token=[a,b]", "grid.extra.hf_token"),
        ("+engine.env.DB_PASS=x", "engine.env.DB_PASS"),
        ("+engine.env.HTTP_AUTH='Bearer x'", "engine.env.HTTP_AUTH"),
    ],
)
def test_a_secret_that_a_command_line_would_show_is_refused(override: str, key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key} would be written to disk"):
        compose_sweep("demo-cpu", [override])


@pytest.mark.parametrize("value", [
    f"https://u:{SECRET}@h", f"https://{SECRET}@h", f"Bearer {SECRET}",
    f"Authorization: {SECRET}", f"hf_token={SECRET}", f'{{"password": "{SECRET}"}}',
])  # fmt: skip
def test_a_secret_is_no_value_of_an_axis(value: str) -> None:
    quoted = value.replace("'", "\\'")
    with pytest.raises(ConfigError) as told:
        compose_sweep("demo-cpu", [f"+grid.extra.loader=[plain,'{quoted}']"])
    assert str(told.value).startswith("grid.extra.loader holds a secret that every table would")
    assert SECRET not in str(told.value)


@pytest.mark.parametrize("key", ["model.name", "card.name"])
def test_a_secret_is_no_name(key: str) -> None:
    with pytest.raises(ConfigError) as told:
        compose_sweep("demo-cpu", [f"{key}='https://u:{SECRET}@h'"])
    assert str(told.value).startswith(key)
    assert SECRET not in str(told.value)


def test_values_of_axes_that_hold_none_are_as_they_are() -> None:
    values = ["ssh://git@host", "basic demo-27b", "bearer", "a@b", 3, True]
    spec = compose_sweep("demo-cpu", [f"+grid.extra.loader={json.dumps(values)}"]).spec
    assert list(spec.grid.extra[0].values) == values
    spec = compose_sweep("demo-cpu", ["+engine.args.hf_token=true"]).spec
    assert spec.engine.args["hf_token"] is True  # of whoever is logged in


def test_a_command_to_paste_says_what_is_masked_in_it() -> None:
    document = placed(
        "engine.args.address", f"https://u:{SECRET}@h", compose_sweep("demo-cpu").document
    )
    spec = spec_from_document(document, secrets=False)
    served = serving(spec, spec.grid.cells()[0])
    noted = "*** stands for a secret that is not written down: put it in before you run the command"
    assert noted in list(notes(served, None))
    found = forms(served, headline="x", file="x.yaml", version=None)
    assert "https://***@h" in found.command
    assert found.config is not None
    comment = found.config.partition("model:")[0].replace("\n# ", " ")
    assert "*** stands for a secret that is not written down" in comment
    assert SECRET not in str(found)
    spec = compose_sweep("demo-cpu").spec
    assert noted not in list(notes(serving(spec, spec.grid.cells()[0]), None))
