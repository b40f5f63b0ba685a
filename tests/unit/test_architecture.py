"""Who may import whom: data flows one way, and each heavy library has one room."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import vllm_frontier

PACKAGE = Path(vllm_frontier.__file__).parent

# A room may import itself and the rooms of the same or an earlier line.
ORDER = (
    {
        *(
            "errors",
            "characters",
            "shipped",
            "outcome",
            "grid",
            "memory",
            "dominance",
            "window_end",
            "conditions",
        ),
        *("signals", "__init__"),
    },
    {"spec", "telemetry", "contention"},
    {"launch", "measure", "engine", "search"},
    {
        *("config_schema", "config_checks", "config_words", "config", "identity"),
        *("checkpoint", "cards", "doctor", "ray_settings", "rehearse"),
    },
    {"trial"},
    {"schedule"},
    {"store"},
    {"analyze", "history", "inferred"},
    {"report", "driver", "sweep"},
    {"commands"},
    {"cli"},
    {"__main__"},
)
# Rooms that know nothing of each other, though they stand on one line.
STRANGERS = (
    ("launch", "measure"),
    ("launch", "engine"),
    ("measure", "launch"),
    ("measure", "engine"),
    ("engine", "launch"),
    ("engine", "measure"),
    ("search", "engine"),
    ("search", "launch"),
    ("search", "measure"),
)
ONE_ROOM = {
    "hydra": {"config"},
    "omegaconf": {"config", "config_schema"},
    "ray": {"schedule"},
    "pynvml": {"telemetry"},
    "httpx": {"measure"},
    "pyarrow": {"store"},
    "polars": {"store", "analyze", "report"},
    "scipy": {"analyze", "measure"},
    "rich": {"report", "commands"},
    "click": {"cli", "commands"},
    "altair": {"report"},
    "vl_convert": {"report"},
    "jinja2": {"report"},
    "vllm": set(),
    "torch": set(),
}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            if node.module == "vllm_frontier":
                yield from (f"vllm_frontier.{alias.name}" for alias in node.names)
            else:
                yield node.module


def own_rooms(path: Path) -> set[str]:
    names = [name.split(".") for name in imported(path)]
    return {name[1] for name in names if name[0] == "vllm_frontier" and len(name) > 1}


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_what_comes_before_it(path: Path) -> None:
    room = room_of(path)
    line = next(number for number, rooms in enumerate(ORDER) if room in rooms)
    allowed = set().union(*ORDER[: line + 1])
    rooms = own_rooms(path) - {room, "__version__"}
    assert rooms <= allowed, f"{room} may not import {rooms - allowed}"
    strangers = {other for one, other in STRANGERS if one == room}
    assert not rooms & strangers


@pytest.mark.parametrize("library", ONE_ROOM)
def test_a_library_is_imported_in_its_rooms_only(library: str) -> None:
    rooms = {
        room_of(path)
        for path in modules()
        if any(name.split(".")[0] == library for name in imported(path))
    }
    assert rooms <= ONE_ROOM[library]


def test_help_imports_neither_ray_nor_hydra_nor_polars() -> None:
    code = (
        "import sys\n"
        "sys.argv = ['vllm-frontier', '--help']\n"
        "from vllm_frontier.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit as done:\n    assert done.code == 0\n"
        "heavy = {'ray', 'vllm', 'torch', 'hydra', 'polars', 'pyarrow', 'httpx', 'rich'}\n"
        "heavy |= {'altair', 'vl_convert', 'jinja2'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "recommend" in done.stdout


def test_a_plan_imports_neither_ray_nor_vllm() -> None:
    code = (
        "import sys\n"
        "sys.argv = ['vllm-frontier', 'plan', 'demo-cpu', '--json']\n"
        "from vllm_frontier.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit as done:\n    assert done.code == 0\n"
        "assert not {'ray', 'vllm', 'torch', 'pynvml'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
