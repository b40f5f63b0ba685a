"""Secrets do not stay in what a server printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllm_frontier.launch.secrets import conceal, conceal_in_file, secret_values


def test_secret_are_values_by_the_names_of_variables_and_options() -> None:
    environment = {"HF_TOKEN": "hf_abcdefgh", "OPENAI_API_KEY": "sk-123456789", "HOME": "/home/me"}
    argv = ["vllm", "serve", "m", "--api-key", "first-key", "second-key", "--hf-token=other-token"]
    assert set(secret_values(environment, argv)) == {
        *("hf_abcdefgh", "sk-123456789", "first-key", "second-key", "other-token")
    }


def test_secret_are_values_by_their_form() -> None:
    environment = {
        "PROXY": "http://user:pass-word@p",
        "NOTE": "Basic dXNlcjpwdzE=",
        "A": "bearer me",
    }
    argv = ["--header", "Authorization: Bearer abc.def-ghi", "https://only-token@hub/x"]
    assert set(secret_values(environment, argv)) == {
        *("user:pass-word", "pass-word", "dXNlcjpwdzE=", "abc.def-ghi", "only-token")
    }


def test_what_is_too_short_to_be_told_from_words_is_left_alone() -> None:
    assert secret_values({"HF_TOKEN": "abc", "X_SECRET": ""}, []) == ()


def test_the_longer_secret_goes_first() -> None:
    secrets = secret_values({"A_TOKEN": "12345678", "B_TOKEN": "1234567890"}, [])
    assert conceal("1234567890 and 12345678", secrets) == "*** and ***"


@pytest.mark.parametrize("before", [0, 1, 2**20 - 5, 2**20, 3 * 2**20 + 7])
def test_a_secret_is_found_wherever_it_lies(tmp_path: Path, before: int) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(b"x" * before + b"secret-value\nnext \xff line\n")
    assert conceal_in_file(log, ("secret-value",))
    assert log.read_bytes() == b"x" * before + b"***\nnext \xff line\n"
    assert [each.name for each in tmp_path.iterdir()] == ["server.log"]


def test_a_log_without_secrets_is_not_touched(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("nothing here\n")
    inode = log.stat().st_ino
    assert not conceal_in_file(log, ("secret-value",))
    assert not conceal_in_file(log, ())
    assert not conceal_in_file(tmp_path / "none", ("secret-value",))
    assert log.stat().st_ino == inode
