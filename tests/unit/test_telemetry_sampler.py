"""Cards sampled while a server lives: a driver library built for the test, loaded as one."""

from pathlib import Path
from typing import Any

import pytest
from nvml_library import ask, build

from vllm_frontier.telemetry.card import reason_words
from vllm_frontier.telemetry.nvml import SILENT

UUIDS = ["GPU-00000000", "GPU-00000001"]
# What is counted between two looks is known of the second, if that is no more than a fifth of a
# second later; and clocks where the kernel tells them.
LOOKED_AT_TWICE = ("cpu_cores", "foreign_cores", "cpu_mhz")
HEAD = f"""
import time
from pathlib import Path
UUIDS = {UUIDS}
def book(text):
    path = Path(os.environ["FAKE_COUNTERS"])
    path.with_name("next").write_text(text)
    path.with_name("next").replace(path)  # never read half written
def last(sampler, count=1):
    assert sampler.look(60) is None
    return [dataclasses.asdict(each) for each in sampler.samples[-count:]]
def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


def sampled(library: Path | None, folder: Path, code: str, **settings: object) -> Any:
    book = folder / "counters"
    book.touch()
    return ask(library, "import os\n" + HEAD + code, counters=book, **settings)


def test_a_sample_has_all_that_a_card_tells(library: Path, tmp_path: Path) -> None:
    code = """
book("temperature@1 83\\nreasons@1 69\\npower_limit@1 400000\\ngpu@1 3\\nmemory_gib@1 20\\n")
with Sampler(cards=UUIDS, phase=lambda: "fill") as sampler:
    found = last(sampler, 2)
    time.sleep(0.25)
    later = last(sampler, 2)
print(json.dumps([found, later, sampler.peak_gib, sampler.power_limit_w, sampler.lost]))
"""
    (one, other), later, peak, limit, lost = sampled(library, tmp_path, code)
    assert one["at"] == other["at"]
    for each in (one, other):
        assert each.pop("at") > 1.7e9
        for name in LOOKED_AT_TWICE:
            each.pop(name)
    assert one == {
        "card": "GPU-00000000",
        "phase": "fill",
        "memory_used_gib": 0.5,
        "sm_clock_mhz": 2400,
        "memory_clock_mhz": 14000,
        "power_w": 300.5,
        "power_limit_w": 575.0,
        "temperature_c": 61,
        "gpu_utilization": 0.97,
        "memory_utilization": 0.52,
        "throttle_reasons": [],
        # Those that were there before the launch.
        "foreign_processes": 2,
        "foreign_gib": 4.0,
    }
    assert other == one | {
        "card": "GPU-00000001",
        "memory_used_gib": 20.0,
        "power_limit_w": 400.0,
        "temperature_c": 83,
        "gpu_utilization": 0.03,
        "throttle_reasons": ["power_cap", "thermal_hardware"],  # and idle, which is none
    }
    assert later[0]["cpu_cores"] == 0.0  # a launch without processes
    assert later[0]["foreign_cores"] >= 0.0
    assert (peak, limit, lost) == (20.5, 975.0, None)


def test_reasons_are_words_and_new_ones_their_number() -> None:
    assert reason_words(0) == reason_words(1) == ()
    assert reason_words(0x7FF) == tuple(
        sorted(
            [
                *("application_clocks", "board_limit", "display_clock", "hardware_slowdown"),
                *("power_brake", "power_cap", "reliability", "sync_boost"),
                *("thermal_hardware", "thermal_software"),
            ]
        )
    )
    assert reason_words(0x80000000000 | 4) == ("bit_0x80000000000", "power_cap")


FIELDS = {
    "memory_gib": {"memory_used_gib"},
    "sm_clock": {"sm_clock_mhz"},
    "memory_clock": {"memory_clock_mhz"},
    "power": {"power_w"},
    "power_limit": {"power_limit_w"},
    "temperature": {"temperature_c"},
    "gpu": {"gpu_utilization", "memory_utilization"},
    "reasons": {"throttle_reasons"},
}


def test_a_counter_that_is_not_told_is_none_and_the_others_stay(
    library: Path, tmp_path: Path
) -> None:
    code = f"""
found = []
for counter in {list(FIELDS)}:
    for word in ("unsupported", "missing", "denied", "unknown"):
        book(f"{{counter}} {{word}}\\n")
        with Sampler(cards=UUIDS[:1]) as sampler:
            found.append([counter, word, last(sampler)[0], sampler.peak_gib, sampler.lost])
print(json.dumps(found))
"""
    found = sampled(library, tmp_path, code)
    assert len(found) == 32
    for counter, word, sample, peak, lost in found:
        silent = {name for name, value in sample.items() if value is None}
        expected = FIELDS[counter] | {"phase"}
        assert silent.difference(LOOKED_AT_TWICE) == expected, (counter, word)
        assert (peak, lost) == (None if counter == "memory_gib" else 0.5, None)


def test_a_number_that_stands_for_no_figure_is_none(library: Path, tmp_path: Path) -> None:
    figures = [name for name in FIELDS if name not in ("memory_gib", "reasons")]
    code = f"""
book("".join(f"{{name}} 4294967295\\n" for name in {figures}))
with Sampler(cards=UUIDS[:1]) as sampler:
    print(json.dumps([last(sampler)[0], sampler.power_limit_w]))
"""
    sample, limit = sampled(library, tmp_path, code)
    for name in figures:
        assert {sample[field] for field in FIELDS[name] - {"memory_utilization"}} == {None}, name
    assert limit is None
    assert sample["memory_used_gib"] == 0.5


def test_what_is_not_supported_is_asked_for_once(library: Path, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    code = """
book("temperature unsupported\\npower unknown\\ncomputing missing\\ndrawing missing\\n")
with Sampler(cards=UUIDS[:1], interval_s=60) as sampler:
    for _ in range(8):
        found = last(sampler)[0]
    book("temperature 70\\npower 1500\\n")
    later = last(sampler)[0]
told = [[each[name] for name in ("temperature_c", "power_w", "foreign_processes")]
        for each in (found, later)]
print(json.dumps(told))
"""
    # What failed for a passing reason is told again when it passed.
    told = sampled(library, tmp_path, code, asked=asked)
    assert told == [[None, None, None], [None, 1.5, None]]
    lines = asked.read_text().split()
    assert lines.count("sm_clock") == lines.count("power") >= 9
    assert lines.count("temperature") == 2  # there are two ways to ask
    assert lines.count("handle") == 1
    assert lines.count("computing") == lines.count("drawing") == 1  # this library has one way


def test_an_old_driver_tells_what_it_can(tmp_path: Path) -> None:
    code = """
book("reasons 4\\n")
with Sampler(cards=UUIDS[:1]) as sampler:
    found = last(sampler)[0]
names = ("memory_used_gib", "throttle_reasons", "temperature_c", "foreign_processes")
listed = [each.pid for each in cards()[0].processes]
print(json.dumps([*(found[name] for name in names), listed]))
"""
    old = build(tmp_path, "-DOLD")
    assert sampled(old, tmp_path, code) == [0.75, ["power_cap"], 61, 2, [5000000, 5000001]]


def test_without_a_driver_a_card_tells_nothing(tmp_path: Path) -> None:
    code = """
with Sampler(cards=UUIDS[:1]) as sampler:
    found = last(sampler)[0]
known = sorted(name for name, value in found.items() if value is not None)
print(json.dumps([known, sampler.peak_gib, sampler.power_limit_w, sampler.lost]))
"""
    known, *others = sampled(None, tmp_path, code)
    assert set(known).difference(LOOKED_AT_TWICE) == {"at", "card"}
    assert others == [None, None, None]


@pytest.mark.parametrize(
    ("word", "said"), [("lost", "GPU is lost"), ("reset", "GPU requires restart")]
)
def test_a_card_that_is_lost_meanwhile(library: Path, tmp_path: Path, word: str, said: str) -> None:
    code = f"""
book("memory_gib 3\\n")
with Sampler(cards=UUIDS, interval_s=0.01) as sampler:
    last(sampler)
    book("card@1 {word}\\nmemory_gib 9\\n")
    until(lambda: sampler.lost is not None)
    book("memory_gib 12\\n")
    found = last(sampler, 2)
    lost = sampler.lost
found = [[each["card"], each["memory_used_gib"]] for each in found]
print(json.dumps([found, sampler.peak_gib, sampler.power_limit_w, lost]))
"""
    found, peak, limit, lost = sampled(library, tmp_path, code)
    # The other one goes on; a lost one is not asked again, though it would answer.
    assert found[-1] == ["GPU-00000000", 12.0]
    assert peak == 6.0
    assert limit == 1150.0
    assert lost.startswith("card GPU-00000001: a GPU is lost or needs a reset: see `dmesg`")
    assert lost.endswith(f"(NVML: {said})")


def test_processes_of_the_launch_are_not_foreign(library: Path, tmp_path: Path) -> None:
    code = """
def told(expected, *processes):
    book("".join(f"process {pid} {gib}\\n" for pid, gib in processes))
    deadline = time.monotonic() + 60
    while True:  # lists are asked for less often than the rest
        found = last(sampler)[0]
        answer = [found["foreign_processes"], found["foreign_gib"]]
        if answer == expected or time.monotonic() > deadline:
            assert answer == expected, (processes, answer)
            return
        time.sleep(0.01)
members = []
book("process 111 1\\n")
with Sampler(cards=UUIDS[:1], pids=lambda: members, interval_s=60) as sampler:
    told([1, 1.0], (111, 1))
    told([None, None], (111, 1), (222, 2))  # of another one, or of this launch?
    members.append(333)
    told([2, 3.0], (111, 1), (222, 2), (333, 8))
    members.append(444)  # a worker that was just forked
    told([1, 2.5], (222, 2.5), (333, 8), (444, 8))
    told([0, 0], (333, 8))
    told([1, 4], (333, 8), (555, 4))
members = [333]
book("process 111 1\\n")
with Sampler(cards=UUIDS[:1], pids=lambda: members, interval_s=60) as sampler:
    told([1, 1.0], (111, 1))
    told([None, None], (111, 1), (999, 8))  # the launch's, by the pid that the host counts
print(json.dumps("all is told"))
"""
    assert sampled(library, tmp_path, code) == "all is told"


def test_memory_of_others_is_unknown_where_the_driver_hides_it(
    library: Path, tmp_path: Path
) -> None:
    code = """
with Sampler(cards=UUIDS[:1]) as sampler:
    found = last(sampler)[0]
print(json.dumps([found["foreign_processes"], found["foreign_gib"]]))
"""
    assert sampled(library, tmp_path, code, processes="hidden") == [2, None]


def test_two_cards_cost_less_than_a_hundredth_of_a_core(library: Path, tmp_path: Path) -> None:
    code = """
began = time.monotonic()
with Sampler(cards=UUIDS) as sampler:
    until(lambda: len(sampler.samples) >= 10)
print(json.dumps([sampler.busy_s, time.monotonic() - began]))
"""
    busy_s, took = sampled(library, tmp_path, code)
    # Of the time and a credit of five seconds, and once for the library to load.
    assert 0 < busy_s < (took + 5) / 100 + 0.05


def test_a_driver_that_is_slow_is_asked_less_often(library: Path, tmp_path: Path) -> None:
    code = """
with Sampler(cards=UUIDS, interval_s=0.01) as sampler:
    time.sleep(1.5)
print(json.dumps([len(sampler.samples) // 2, sampler.busy_s]))
"""
    rounds, busy_s = sampled(library, tmp_path, code, spin_ms=2)
    # Some 40 ms for each: the credit of the beginning is spent with the first or second; without
    # a limit there would be dozens.
    assert rounds <= 6
    assert busy_s < 0.4


def test_a_driver_that_hangs_holds_nobody_up(library: Path, tmp_path: Path) -> None:
    hang = tmp_path / "hang"
    code = f"""
hang = Path({str(hang)!r})
with Sampler(cards=UUIDS[:1], interval_s=60) as sampler:
    last(sampler)
    count = len(sampler.samples)
    hang.touch()
    began = time.monotonic()
    silent = sampler.look(timeout_s=0.2)
    waited = time.monotonic() - began
    hung = len(sampler.samples)
    hang.unlink()
    later = sampler.look()
print(json.dumps([hung - count, waited, silent, later]))
"""
    more, waited, silent, later = sampled(library, tmp_path, code, hang=hang)
    assert more == 0
    assert 0.15 < waited < 30
    assert silent == f"card {UUIDS[0]}: {SILENT}"
    assert later is None


def test_no_question_waits_for_a_driver_that_hangs(library: Path, tmp_path: Path) -> None:
    hang = tmp_path / "hang"
    code = f"""
import threading
from vllm_frontier.contention import read_state
from vllm_frontier.telemetry import nvml
hang = Path({str(hang)!r})
def timed(question):
    began = time.monotonic()
    return question(), time.monotonic() - began
assert len(cards()) == 2  # the first question may take longer
nvml.ANSWER_S = 0.15
hang.touch()
questions = (probe, lambda: lost_card(UUIDS), lambda: read_state(UUIDS), cards)
asked = [timed(each) for each in questions]
threads = [each.name for each in threading.enumerate()]
found, lost, state, listed = [answer for answer, _ in asked]
hang.unlink()
nvml.ANSWER_S = 30
assert len(cards()) == 2
print(json.dumps([
    [*dataclasses.astuple(found)], lost, [state.used_gib, listed], [waited for _, waited in asked],
    threads.count("question"), lost_card(UUIDS), sorted(read_state(UUIDS).used_gib),
]))
"""
    found, lost, empty, waits, threads, *later = sampled(library, tmp_path, code, hang=hang)
    assert found == [[], None, None, SILENT]
    assert lost == f"card {UUIDS[0]}, {UUIDS[1]}: {SILENT}"
    assert empty == [{}, []]
    assert all(0.1 < each < 30 for each in waits), waits
    assert threads == 1  # they do not pile up
    assert later == [None, UUIDS]
