"""What a server inherits, and what is written down of it."""

import os
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_frontier.launch.environment import is_secret, launch_environment, mask_secrets
from vllm_frontier.launch.folders import private_tmp, remove_tmp


def test_what_ray_and_the_drivers_environment_set_is_left_out() -> None:
    base = {
        "PATH": "/usr/bin",
        "HOME": "/home/me",
        "RAY_ADDRESS": "auto",
        "RAY_JOB_ID": "1",
        "VIRTUAL_ENV": "/home/me/.venv",
        "PYTHONHOME": "/opt/python",
        "PYTHONPATH": "/mine:/x/ray/_private/workers:/x/ray/thirdparty_files:/arrays",
        "PYTHONBREAKPOINT": "ray.util.rpdb.set_trace",
        "TMP": "/elsewhere",
        "TMPDIR": "/a/very/long/folder",
        "OMP_NUM_THREADS": "4",
        "LANG": "C.UTF-8",
    }
    changes = {"LANG": None, "ABSENT": None, "VLLM_LOGGING_LEVEL": "DEBUG", "HOME": "/root"}
    before = dict(base)
    assert launch_environment(base, changes, tmp=Path("/tmp/vf-1")) == {
        "PATH": "/usr/bin",
        "HOME": "/root",
        "PYTHONPATH": "/mine:/arrays",
        "OMP_NUM_THREADS": "4",
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": "/tmp/vf-1",
        "TORCHINDUCTOR_CACHE_DIR": f"/a/very/long/folder/torchinductor_{os.getuid()}",
        "VLLM_LOGGING_LEVEL": "DEBUG",
    }
    assert base == before


def test_changes_have_the_last_word() -> None:
    changes = {
        "TMPDIR": "/mine",
        "PYTHONUNBUFFERED": None,
        "TORCHINDUCTOR_CACHE_DIR": None,
        "RAY_ADDRESS": "head:6379",
    }
    environment = launch_environment({"RAY_ADDRESS": "x"}, changes, tmp=Path("/tmp/vf-1"))
    assert environment == {"TMPDIR": "/mine", "RAY_ADDRESS": "head:6379"}


def test_a_python_path_of_rays_pieces_alone_goes_whole() -> None:
    base = {"PYTHONPATH": ":/x/ray/_private:"}
    assert "PYTHONPATH" not in launch_environment(base, {}, tmp=Path("/t"))


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "VLLM_API_KEY",
        "openai_api_key",
        "AWS_SECRET_ACCESS_KEY",
        "MY_SECRETS",
        "DB_PASSWORD",
        "TOKEN",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "DB_PASS",
        "HTTP_AUTH",
        "REDIS_PASSWD",
        "SSH_PASSPHRASE",
        "PROXY_AUTHORIZATION",
        "PRIVATE_KEY",
    ],
)
def test_secret_variables_are_masked(name: str) -> None:
    assert mask_secrets({name: "s3cret", "PATH": "/bin"}) == {name: "***", "PATH": "/bin"}
    assert mask_secrets({name: ""}) == {name: ""}  # that it is not set is no secret


@pytest.mark.parametrize(
    "name",
    [
        *("TOKENIZERS_PARALLELISM", "MAX_TOKENS", "VLLM_CACHE_ROOT", "KEYBOARD", "HF_HOME"),
        *("PWD", "BYPASS", "AUTHOR", "post_grad_custom_post_pass"),
    ],
)
def test_other_variables_are_not_masked(name: str) -> None:
    assert mask_secrets({name: "value"}) == {name: "value"}


@pytest.mark.parametrize(
    ("argv", "masked"),
    [
        (["--api-key", "k"], ["--api-key", "***"]),
        (["--api-key=k"], ["--api-key=***"]),
        (["--api_key", "k1", "k2", "--port", "1"], ["--api_key", "***", "***", "--port", "1"]),
        (["--hf-token", "k", "model"], ["--hf-token", "***", "model"]),
        (["--hf-token", "--port", "1"], ["--hf-token", "--port", "1"]),
        (["docker", "-e", "HF_TOKEN=k", "x"], ["docker", "-e", "HF_TOKEN=***", "x"]),
        (["--env=HF_TOKEN=k"], ["--env=HF_TOKEN=***"]),
        (["--max-num-batched-tokens", "8192"], ["--max-num-batched-tokens", "8192"]),
        (["--download-dir", "/m", "A=b"], ["--download-dir", "/m", "A=b"]),
        (["https://me:pw@host/x?a=b@c"], ["https://***@host/x?a=b@c"]),
        (["https://me:p@w@host/x"], ["https://***@host/x"]),
        (["https://t0ken@host"], ["https://***@host"]),
        (["redis://:pw@host/0"], ["redis://***@host/0"]),
        (["ssh://git@host/x"], ["ssh://git@host/x"]),
        (["--header", "authorization: Digest k"], ["--header", "authorization: ***"]),
        (["X-Api-Key: k", "--opt=Bearer abcdefgh"], ["X-Api-Key: ***", "--opt=Bearer ***"]),
        (["Basic dXNlcjpwdzE=", "Basic words", "bearer"], ["Basic ***", "Basic words", "bearer"]),
        (['{"h": "Bearer abcdefgh", "n": 1}'], ['{"h": "Bearer ***", "n": 1}']),
    ],
)
def test_secrets_in_commands_are_masked(argv: list[str], masked: list[str]) -> None:
    assert mask_secrets(argv) == masked


def test_options_and_variables_are_told_apart_by_the_same_rule() -> None:
    names = ["--api-key", "api_key", "HF_TOKEN", "max-num-batched-tokens", "model", "--hf-token"]
    assert [is_secret(name) for name in names] == [True, True, True, False, False, True]


def test_a_proxy_keeps_its_host_and_loses_its_user() -> None:
    assert mask_secrets({"HTTPS_PROXY": "http://me:pw@proxy:3128"}) == {
        "HTTPS_PROXY": "http://***@proxy:3128"
    }


WORDS = st.text(st.characters(codec="ascii", exclude_characters="\0"), max_size=12)


@given(before=st.lists(WORDS), after=st.lists(WORDS), option=st.sampled_from(["--", "--hf-token"]))
def test_masking_keeps_the_number_of_words_and_no_key(
    before: list[str], after: list[str], option: str
) -> None:
    argv = [*before, "--api-key", "k3y-that-nobody-may-see", option, *after]
    masked = mask_secrets(argv)
    assert len(masked) == len(argv)
    assert "k3y-that-nobody-may-see" not in masked
    assert mask_secrets(masked) == masked


def test_a_private_folder_is_short_private_and_removed() -> None:
    folder = private_tmp()
    other = private_tmp()
    assert folder != other
    assert folder.name.startswith("vf-")
    assert len(str(folder)) <= 52
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (folder / "deep").mkdir()
    (folder / "deep" / "file").write_text("x")
    assert remove_tmp(folder) is True
    assert not folder.exists()
    assert remove_tmp(folder) is True
    assert remove_tmp(other) is True


def test_a_long_system_folder_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("long" * 20)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    folder = private_tmp()
    assert folder.parent == Path("/tmp")
    assert remove_tmp(folder)


def test_only_its_own_folders_are_removed(tmp_path: Path) -> None:
    kept = tmp_path / "results"
    kept.mkdir()
    link = tmp_path / "vf-link"
    link.symlink_to(kept)
    assert remove_tmp(kept) is False
    assert remove_tmp(link) is False
    assert kept.is_dir()
    assert link.readlink() == kept


def test_secrets_in_a_json_argument_are_masked() -> None:
    argv = ["serve", "--hf-overrides", '{"token": "abc", "a": [{"api_key": "x", "depth": 3}]}']
    assert mask_secrets(argv)[2] == '{"token": "***", "a": [{"api_key": "***", "depth": 3}]}'
    untouched = '{"method":"mtp","num_speculative_tokens":3}'
    assert mask_secrets([untouched]) == [untouched]
