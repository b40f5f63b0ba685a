"""`rehearse --card FILE`: the file is found whatever characters its name has."""

import json
from pathlib import Path

import pytest

from vllm_frontier.cli import cli
from vllm_frontier.engine.simulated.card_file import find_card

NAMES = (
    "it's [a] card.yaml",
    'a=b,c {x: 1} "d".yaml',
    r"back\slash\' and end\\",
    "${oc.env:HOME}.yaml",
    "5",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_card_file_may_have_any_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bundled = find_card("tiny-8gib").read_text()
    (tmp_path / name).write_text(bundled.replace('"Simulated 8 GiB"', "My own card"))
    monkeypatch.chdir(tmp_path)
    words = ["demo-gpu", "grid.context=[8192]", "search.audit=0", "--json", "--card", name]
    assert cli.main(["rehearse", *words], standalone_mode=False) == 0
    assert json.loads(capsys.readouterr().out)["card"] == "My own card"
