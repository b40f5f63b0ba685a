"""Cards as NVML tells them: a library built for the test, loaded as the real one would be."""

from pathlib import Path
from typing import Any

import pytest
from nvml_library import ask, build


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


PROBE = "print(json.dumps(dataclasses.asdict(probe())))"


def test_cards_are_told_in_the_order_of_the_bus(library: Path) -> None:
    found = ask(library, PROBE)
    assert found["problem"] is None
    assert found["driver"] == "575.57.08"
    assert found["cuda"] == "12.9"
    assert [card["uuid"] for card in found["cards"]] == ["GPU-00000001", "GPU-00000000"]
    assert found["cards"][0] == {
        "index": 0,
        "uuid": "GPU-00000001",
        "name": "Fake RTX 1",
        "total_gib": 32.0,
        "used_gib": 1.5,
        "free_gib": 30.25,
        "driver": "575.57.08",
        "compute_capability": "12.1",
        # Its own process is left out, and one that also draws is told once.
        "processes": [{"pid": 5000000, "used_gib": 3.0}, {"pid": 5000001, "used_gib": 1.0}],
    }
    assert found["cards"][1]["index"] == 1
    assert ask(library, "print(json.dumps([card.name for card in cards()]))") == [
        "Fake RTX 1",
        "Fake RTX 0",
    ]


@pytest.mark.parametrize(
    ("settings", "used", "processes"),
    [
        ({"memory": "v1"}, 0.75, [(5000000, 3.0), (5000001, 1.0)]),
        ({"memory": "none"}, None, [(5000000, 3.0), (5000001, 1.0)]),
        ({"processes": "hidden"}, 0.5, [(5000000, None), (5000001, None)]),
        ({"processes": "none"}, 0.5, None),
    ],
)
def test_what_a_card_does_not_tell_is_none(
    library: Path, settings: dict[str, str], used: float | None, processes: Any
) -> None:
    found = ask(library, PROBE, cards=1, **settings)
    assert found["problem"] is None
    card = found["cards"][0]
    assert card["used_gib"] == used
    assert (card["total_gib"] is None) == (used is None)
    listed = card["processes"]
    assert listed == (
        None if processes is None else [{"pid": pid, "used_gib": gib} for pid, gib in processes]
    )


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (9, "kernel driver is not loaded"),
        (18, "driver was updated while its older kernel module runs: reboot"),
        (4, "no permission to use the NVIDIA cards"),
        (15, "a GPU is lost"),
        (16, "a GPU is lost or needs a reset"),
        (999, "NVML: Unknown Error (in a container: it may have lost its access to"),
        (13, "the NVIDIA driver is too old"),
        (8, "power cables"),
        (10, "NVML: Timeout"),
    ],
)
def test_a_driver_that_does_not_work_is_one_clear_line(
    library: Path, code: int, words: str
) -> None:
    told = "[dataclasses.asdict(probe()), lost_card(['GPU-00000000'])]"
    found, lost = ask(library, f"print(json.dumps({told}))", init=code)
    assert found["cards"] == []
    assert words in found["problem"]
    assert "\n" not in found["problem"]
    said = {15: "GPU is lost", 16: "GPU requires restart"}.get(code)
    assert lost == (said and f"card GPU-00000000: {found['problem']} (NVML: {said})")


def test_a_machine_without_a_driver_says_so() -> None:
    assert ask(None, "print(json.dumps([probe().problem, cards(), lost_card(['x'])]))") == [
        "no NVIDIA driver: libnvidia-ml.so.1 was not found "
        "(in a container: was it started with --gpus?)",
        [],
        None,
    ]


def test_a_driver_that_shows_no_card_says_so(library: Path) -> None:
    found = ask(library, PROBE, cards=0)
    assert found["cards"] == []
    assert "shows no card" in found["problem"]


def test_a_lost_card_does_not_hide_the_others(library: Path) -> None:
    found = ask(library, PROBE, cards=3, lost=1)
    assert [card["name"] for card in found["cards"]] == ["Fake RTX 2", "Fake RTX 0"]
    assert [card["index"] for card in found["cards"]] == [0, 1]
    assert found["problem"].startswith("card 1: a GPU is lost")
    ask_lost = "print(json.dumps([lost_card([f'GPU-0000000{i}']) is None for i in range(3)]))"
    assert ask(library, ask_lost, lost=1) == [True, False, True]


def test_a_driver_that_comes_back_is_asked_again(library: Path) -> None:
    code = (
        "import os\nfirst = probe().problem\nos.environ['FAKE_INIT'] = '0'\n"
        "print(json.dumps([first, probe().problem, len(cards())]))"
    )
    first, second, count = ask(library, code, init=9)
    assert "not loaded" in first
    assert second is None
    assert count == 2


def test_the_library_is_not_loaded_before_it_is_asked(library: Path) -> None:
    code = (
        "import sys\nbefore = 'pynvml' in sys.modules\nprobe()\n"
        "print(json.dumps([before, 'pynvml' in sys.modules]))"
    )
    assert ask(library, code) == [False, True]
