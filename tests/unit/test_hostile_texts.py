"""Characters that a terminal, a shell or XML would act on: refused in names, else told apart."""

import io
import json
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import altair as alt
import click
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from vllm_frontier.characters import (
    REPLACEMENT,
    all_printable,
    escaped_json,
    printable,
    quoted,
    unprintable,
)
from vllm_frontier.commands.arguments import TOKENS, Named
from vllm_frontier.commands.console import paste_as_utf8, terminal
from vllm_frontier.config import compose_sweep
from vllm_frontier.config_checks import check_texts
from vllm_frontier.config_schema import SweepConf
from vllm_frontier.errors import ConfigError
from vllm_frontier.grid import digest
from vllm_frontier.measure.task import load_task
from vllm_frontier.report.pages import frame
from vllm_frontier.report.plots import render, words
from vllm_frontier.report.plots.figure import Figure

ACTING = {
    "null": "\0",
    "bell": "\a",
    "carriage return": "\r",
    "escape": "\x1b",
    "delete": "\x7f",
    "next line": "\x85",
    "control sequence": "\x9b",
    "line separator": "\u2028",
    "right-to-left override": "\u202e",
    "isolate": "\u2066",
    "surrogate": "\ud800",
    "noncharacter": "\ufffe",
}
PLAIN = "a Ünïcode n\u00e4me \N{GRINNING FACE} \u200d \N{NO-BREAK SPACE} \u05d0\u05d1 <&>\"'"


def setting(*path: str) -> Callable[[SweepConf, Any], None]:
    def put(conf: SweepConf, value: Any) -> None:
        *sections, name = path
        node: Any = conf
        for section in sections:
            node = getattr(node, section)
        setattr(node, name, value)

    return put


NAMING: dict[str, Callable[[SweepConf, str], None]] = {
    "name": setting("name"),
    "model.name": setting("model", "name"),
    "model.id": setting("model", "id"),
    "model.revision": setting("model", "revision"),
    "model.quantization": setting("model", "quantization"),
    "model.speculation.model": setting("model", "speculation", "model"),
    "card.name": setting("card", "name"),
    "engine.card_file": setting("engine", "card_file"),
    "a name in engine.args": lambda conf, text: setting("engine", "args")(conf, {text: 1}),
    "a name in engine.env": lambda conf, text: setting("engine", "env")(conf, {text: 1}),
    "a name in model.args.overrides": lambda conf, text: setting("model", "args")(
        conf, {"overrides": {text: 1}}
    ),
    "a name in grid.extra": lambda conf, text: setting("grid", "extra")(conf, {text: [1]}),
    "grid.extra.kv": lambda conf, text: setting("grid", "extra")(conf, {"kv": [1, text]}),
    "grid.exclude.kv": lambda conf, text: setting("grid", "exclude")(conf, [{"kv": text}]),
    "workload.tasks": lambda conf, text: setting("workload", "tasks")(conf, ["edit", text]),
}
HANDED_ON: dict[str, Callable[[SweepConf, str], None]] = {
    "engine.args.x": lambda conf, text: setting("engine", "args")(conf, {"x": text}),
    "engine.args.x.y": lambda conf, text: setting("engine", "args")(conf, {"x": {"y": [text]}}),
    "engine.env.X": lambda conf, text: setting("engine", "env")(conf, {"X": text}),
    "engine.command": setting("engine", "command"),
    "model.args.x": lambda conf, text: setting("model", "args")(conf, {"x": text}),
    "model.speculation.args.x": lambda conf, text: setting("model", "speculation", "args")(
        conf, {"x": text}
    ),
}


@pytest.mark.parametrize("letter", ACTING.values(), ids=ACTING)
@pytest.mark.parametrize("key", [*NAMING, *HANDED_ON])
def test_no_text_of_a_sweep_acts_on_what_prints_it(key: str, letter: str) -> None:
    conf = SweepConf()
    (NAMING | HANDED_ON)[key](conf, f"a{letter}b")
    with pytest.raises(ConfigError) as told:
        check_texts(conf)
    assert str(told.value).startswith(f"{key} is ")
    assert str(told.value).endswith(f"it has U+{ord(letter):04X}")
    assert unprintable(str(told.value)) is None


@pytest.mark.parametrize("key", NAMING)
def test_names_have_one_line_and_any_letters(key: str) -> None:
    conf = SweepConf()
    NAMING[key](conf, PLAIN)
    check_texts(conf)
    for letter in "\n\t":
        NAMING[key](conf, f"a{letter}b")
        with pytest.raises(ConfigError, match=f"U\\+000{ord(letter):X}"):
            check_texts(conf)


@pytest.mark.parametrize("key", HANDED_ON)
def test_values_that_are_handed_on_may_have_several_lines(key: str) -> None:
    conf = SweepConf()
    HANDED_ON[key](conf, f"{PLAIN}\n\t{{% if x %}}\n")
    check_texts(conf)


def test_a_key_that_acts_is_named_without_it() -> None:
    conf = SweepConf()
    conf.engine.args = {"a\x1b[31m": {"b": "\a"}}
    with pytest.raises(ConfigError, match=r"^a name in engine\.args is 'a\\x1b\[31m', "):
        check_texts(conf)


@pytest.mark.parametrize("letter", ["\x1b", "\ud800"])
def test_a_sweep_file_is_refused_before_anything_reads_its_names(
    tmp_path: Path, letter: str
) -> None:
    document = {
        "defaults": [
            "base",
            {"override model": "demo-mtp"},
            {"override card": "cpu-demo"},
            "_self_",
        ],
        "engine": {"kind": "vllm-cpu"},
        "model": {"id": f"~{letter}/m"},
        "grid": {"context": [8192], "extra": {"kv": [f"a{letter}"]}},
    }
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(document))
    with pytest.raises(ConfigError, match=r"it has U\+"):
        compose_sweep(str(file))


@pytest.mark.parametrize("letter", [*ACTING.values(), "\n"], ids=[*ACTING, "line feed"])
def test_names_of_tasks_are_names_and_prompts_are_prose(tmp_path: Path, letter: str) -> None:
    fields = {"name": f"a{letter}b", "max_tokens": 8, "variants": ["Hello"]}
    file = tmp_path / "task.yaml"
    file.write_text(json.dumps(fields))
    with pytest.raises(ConfigError, match=f"it has U\\+{ord(letter):04X}"):
        load_task(str(file))
    file.write_text(json.dumps(fields | {"name": "a", "variants": [f"a{letter}\n\tb"]}))
    if letter == "\ud800":
        with pytest.raises(ConfigError, match="half of a surrogate pair"):
            load_task(str(file))
    else:
        assert load_task(str(file)).variants == (f"a{letter}\n\tb",)


# What is printed all the same


@given(st.text(st.characters(exclude_categories=[]), max_size=40))
def test_a_printable_text_stays_and_the_others_lose_what_acts(text: str) -> None:
    told = printable(text, lines=True)
    assert len(told) == len(text)
    assert all(
        one == other if unprintable(other, lines=True) is None else one == REPLACEMENT
        for one, other in zip(told, text, strict=True)
    )
    assert unprintable(told, lines=True) is None
    told.encode()
    assert json.loads(escaped_json(json.dumps(text, ensure_ascii=False))) == text
    assert unprintable(printable(text)) is None


def test_every_control_character_acts() -> None:
    codes = [*range(0x20), *range(0x7F, 0xA0), *range(0xD800, 0xE000)]
    assert all(unprintable(chr(code)) == f"U+{code:04X}" for code in codes)
    assert unprintable(PLAIN) is None


def test_what_cannot_be_printed_is_pasted_as_it_is() -> None:
    bare = {name: each for name, each in ACTING.items() if name not in ("null", "surrogate")}
    wanted = [f"a{each}1'\\ \n$x`y`" for each in bare.values()] + ["plain", "a b", "", PLAIN]
    command = " ".join(map(quoted, wanted))
    assert unprintable(command, lines=True) is None
    bash = shutil.which("bash")
    assert bash is not None
    done = subprocess.run(
        [bash, "-c", f"printf '%s\\0' {command}"], capture_output=True, check=True, timeout=20
    )
    assert done.stdout.decode().split("\0")[:-1] == wanted
    assert quoted("a b") == "'a b'"
    assert quoted("\udcff") == r"$'\xff'"  # a byte of a name of a file


def test_nothing_acts_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    console = terminal()
    for letter in ACTING.values():
        console.print(f"a{letter}b", soft_wrap=True)
    out = capsys.readouterr().out
    assert unprintable(out, lines=True) is None
    assert out.replace(REPLACEMENT, "") == "ab\n" * len(ACTING)  # rich drops a few itself


@pytest.mark.parametrize(("columns", "width"), [("0", 80), ("57", 57)])
def test_a_terminal_without_a_width_has_80_columns(
    monkeypatch: pytest.MonkeyPatch, columns: str, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    console = terminal()
    assert isinstance(console, Console)
    assert console.width == width


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_what_is_pasted_is_utf_8_where_the_output_lacks_letters(
    monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding=encoding, errors="replace")
    monkeypatch.setattr(sys, "stdout", stream)
    paste_as_utf8()
    terminal().print("vllm serve '/m/\u4e2d'", soft_wrap=True)
    stream.flush()
    assert written.getvalue() == "vllm serve '/m/\u4e2d'\n".encode()
    stream.detach()


# Pages and pictures


@pytest.mark.parametrize("letter", ACTING.values(), ids=ACTING)
def test_a_picture_is_drawn_of_any_text(letter: str) -> None:
    text = f"a{letter}b"
    chart = (
        alt.Chart(alt.Data(values=[{text: text, "y": 1}]), title=text)
        .mark_bar()
        .encode(x=alt.X("y:Q", title=text))
    )
    figure = Figure("f", text, text, text, (chart,))
    drawn = json.dumps(render.specifications(figure), ensure_ascii=False)
    assert f"a{REPLACEMENT}b" in drawn
    assert unprintable(drawn) is None
    assert all_printable({text: [text, (text, 1, None, True)]}) == {
        f"a{REPLACEMENT}b": [f"a{REPLACEMENT}b", [f"a{REPLACEMENT}b", 1, None, True]]
    }


def test_vega_takes_what_is_left() -> None:
    chart = (
        alt.Chart(alt.Data(values=[{"x": "".join(ACTING.values()), "y": 1}]), title="\x1b\0")
        .mark_bar()
        .encode(x="y:Q", y="x:N")
    )
    [svg] = render.panels(Figure("f", "t", "q", "s", (chart,)))
    ET.fromstring(svg)
    assert REPLACEMENT in svg


def test_a_picture_around_others_is_xml(monkeypatch: pytest.MonkeyPatch) -> None:
    class Template:
        def render(self, _: object) -> str:
            return f"<svg>{''.join(ACTING.values())}\n\t</svg>"

    class Environment:
        def get_template(self, _: str) -> Template:
            return Template()

    monkeypatch.setattr(frame, "_environment", Environment)
    monkeypatch.setattr(frame, "_markdown_environment", Environment)
    wanted = f"<svg>{REPLACEMENT * len(ACTING)}\n\t</svg>"
    assert frame.svg("", {}) == frame.html("", {}) == wanted
    assert frame.markdown_page("", {}) == f"{wanted}\n"


def test_headings_of_panels_have_few_lines() -> None:
    told = words.lines("depth 3, kv=" + "x" * 10_000)
    assert len(told) == 5
    assert max(map(len, told)) <= 42
    assert told[-1].endswith("\N{HORIZONTAL ELLIPSIS}")
    assert words.lines("depth 3, kv=auto") == ["depth 3, kv=auto"]


# Words of a command line


@pytest.mark.parametrize("kind", [Named(), Named(file_okay=False), Named(dir_okay=False)])
def test_an_empty_text_is_no_path(kind: Named) -> None:
    with pytest.raises(click.BadParameter, match="an empty text names no file or folder"):
        kind.convert("", None, None)


@pytest.mark.parametrize("text", ["1000000001", "1000001k", "999999999999999M", "954M"])
def test_a_window_has_an_end(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is more than 1000000000 tokens"):
        TOKENS.convert(text, None, None)


@pytest.mark.parametrize(("text", "tokens"), [("1000000000", 10**9), ("1000m", 10**9)])
def test_the_longest_window_is_one(text: str, tokens: int) -> None:
    assert TOKENS.convert(text, None, None) == tokens


def test_cells_of_any_text_have_an_identity() -> None:
    assert digest("\ud800") != digest("\ud801")
    assert digest("ä") == "1e5f2b0a7756f4b4"
