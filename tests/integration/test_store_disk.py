"""A disk that is full, a folder that cannot be written, a folder that goes away.

Each test is a program of its own in a mount namespace of its own, where it may mount a small
disk, fill it and make it read-only. The same programs run with what needs no mount: a limit on
the size of files, and a system that refuses to open for writing.
"""

import json
import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

import pytest

# What every program has: `root` is a sweep's folder on a disk of its own, `fill()` leaves no
# byte on it, `free()` empties it again, `freeze()` and `thaw()` make it read-only and back,
# `line(call)` is what a StoreError says (anything else breaks the test), `files()` what is there.
PROGRAM = """
import errno, json, os, resource, shutil, signal, subprocess, sys
from pathlib import Path

from vllm_frontier.config import compose_sweep
from vllm_frontier.errors import StoreError
from vllm_frontier.identity import identify
from vllm_frontier.outcome import Outcome, Phase, Status
from vllm_frontier.store import rows
from vllm_frontier.store.sweep_store import SweepStore

disk, mounts = Path(sys.argv[1]), sys.argv[2] == "mounts"
composed = compose_sweep("demo-cpu", ["engine=simulated", "engine.card_file=tiny-8gib"])
spec, config = composed.spec, composed.document
identity = identify(spec, "1")
cells = spec.grid.cells()
if mounts:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "small", disk], check=True)
root = disk / "out"

def fill():
    if mounts:
        with (disk / "ballast").open("wb", buffering=0) as file:
            try:
                while file.write(b"x" * 4096):
                    pass
            except OSError:
                pass
    else:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))

def free():
    if mounts:
        (disk / "ballast").unlink()
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)

WRITING = {name: getattr(os, name) for name in ("open", "mkdir", "rename", "replace", "unlink")}

def refused(name):
    def call(path, *args, **options):
        if name == "open" and not args[0] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return WRITING[name](path, *args, **options)
        raise OSError(errno.EROFS, "Read-only file system", str(path))
    return call

def freeze():
    if mounts:
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    else:
        for name in WRITING:
            setattr(os, name, refused(name))

def thaw():
    if mounts:
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
    else:
        for name, call in WRITING.items():
            setattr(os, name, call)

def line(call, *args, **options):
    try:
        call(*args, **options)
    except StoreError as error:
        return str(error).replace(str(disk), "DISK")
    return None

def files():
    return sorted(str(each.relative_to(disk)) for each in disk.rglob("*") if each.is_file())

def state():
    return {each: (disk / each).read_bytes() for each in files() if "ballast" not in each}

def opened():
    return SweepStore.create_or_open(root, config, identity)[0]

def begin(store, cell):
    attempt = store.new_attempt(identity.cell_id(cell))
    row = rows.interrupted_row(spec, identity, cell, attempt.number, started_at=1.0,
                               engine_version="1")
    store.write_attempt(attempt, row, {})
    return attempt

def end(store, attempt, cell):
    outcome = Outcome(Status.MEASURED, Phase.STOP, started_at=1.0, ended_at=2.0)
    trial = rows.trial_row(spec, identity, cell, attempt.number, outcome, engine_version="1")
    store.write_outcome(attempt, trial, [])

def statuses():
    return [each.status.value for each in SweepStore.open(root).outcomes()]

result = {}
"""
NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")


@cache
def may_mount() -> bool:
    """Whether this machine lets a program mount in a namespace of its own."""
    mount = (*NAMESPACE, "mount", "-t", "tmpfs", "-o", "size=64k", "small", "/mnt")
    return subprocess.run(mount, capture_output=True, check=False).returncode == 0


def run(disk: Path, body: str, *, mounts: bool) -> dict[str, Any]:
    """Run a program; what it left in `result`."""
    code = PROGRAM + textwrap.dedent(body) + "\nprint(json.dumps(result))\n"
    words = [sys.executable, "-c", code, str(disk), "mounts" if mounts else "limits"]
    done = subprocess.run(
        [*NAMESPACE, *words] if mounts else words, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(params=["mounts", "limits"])
def mounts(request: pytest.FixtureRequest) -> bool:
    """Both ways, where the first is permitted."""
    return request.param == "mounts" and may_mount()


FULL = "No space left on device"
LIMIT = "File too large"


def test_a_full_disk_is_told_and_leaves_what_is_there(tmp_path: Path, *, mounts: bool) -> None:
    result = run(
        tmp_path,
        """
        with opened() as store:
            first = begin(store, cells[0])
            end(store, first, cells[0])
            second = begin(store, cells[1])
            store.compact()
            before = state()
            fill()
            result["outcome"] = line(end, store, second, cells[1])
            result["log"] = line(store.write_log, second, b"x" * 100_000)
            result["tables"] = line(store.compact)
            result["attempt"] = line(begin, store, cells[2])
            result["same"] = state() == before
            result["second writer"] = line(opened) is not None
        result["closed"] = not (root / "lock.json").exists()
        result["statuses"] = sorted(statuses())
        free()
        result["temporaries"] = [each for each in files() if each.endswith(".tmp")]
        with opened() as store:
            end(store, second, cells[1])
            store.compact()
        result["after"] = sorted(statuses())
        """,
        mounts=mounts,
    )
    why = FULL if mounts else LIMIT
    for call in ("outcome", "log", "tables", "attempt"):
        assert result[call].startswith("DISK/out"), call
        assert result[call].endswith(f" cannot be written: {why}"), call
        assert ".tmp" not in result[call]
        assert "\n" not in result[call]
    assert result["same"]
    assert result["second writer"]
    assert result["closed"]
    assert result["statuses"] == ["interrupted", "measured"]
    assert result["temporaries"] == []
    assert result["after"] == ["measured", "measured"]


def test_a_sweep_that_begins_on_a_full_disk_can_begin_later(
    tmp_path: Path, *, mounts: bool
) -> None:
    result = run(
        tmp_path,
        """
        fill()
        result["told"] = line(opened)
        result["left"] = [each for each in files() if "ballast" not in each]
        result["read"] = line(SweepStore.open, root)
        free()
        with opened() as store:
            result["begun"] = line(begin, store, cells[0])
        """,
        mounts=mounts,
    )
    assert result["told"].endswith(f"cannot be written: {FULL if mounts else LIMIT}")
    assert set(result["left"]) <= {"out/lock"}
    assert result["read"].startswith("DISK/out is no sweep")
    assert result["begun"] is None


def test_a_folder_that_cannot_be_written_is_told_and_can_be_read(
    tmp_path: Path, *, mounts: bool
) -> None:
    result = run(
        tmp_path,
        """
        with opened() as store:
            end(store, begin(store, cells[0]), cells[0])
            harmed = begin(store, cells[1])
            end(store, harmed, cells[1])
            store.compact()
        harmed.runs_parquet.write_bytes(b"")
        before = state()
        freeze()
        result["run"] = line(opened)
        result["resume"] = line(SweepStore.open_for_writing, root)
        result["statuses"] = sorted(statuses())
        trials, _ = SweepStore.open(root).tables()
        result["rows"] = sorted(trials["status"])
        result["same"] = state() == before
        thaw()
        with opened() as store:
            result["found"] = len(store.take_stock()[1])
        """,
        mounts=mounts,
    )
    for command in ("run", "resume"):
        assert result[command].startswith("DISK/out")
        assert result[command].endswith(" cannot be written: Read-only file system")
    assert result["statuses"] == result["rows"] == ["interrupted", "measured"]
    assert result["same"]
    assert result["found"] == 1


def test_a_disk_that_becomes_read_only_while_it_is_written_is_told(tmp_path: Path) -> None:
    result = run(
        tmp_path,
        """
        store = opened()
        attempt = begin(store, cells[0])
        end(store, attempt, cells[0])
        harmed = begin(store, cells[1])
        end(store, harmed, cells[1])
        harmed.runs_parquet.write_bytes(b"")
        temporary = root / ".trials.parquet.0123456789ab.tmp"
        temporary.touch()
        before = state()
        freeze()
        result["told"] = [
            line(begin, store, cells[2]),
            line(end, store, attempt, cells[0]),
            line(store.compact),
            line(store.take_stock),
            line(store.close),
        ]
        result["same"] = state() == before
        result["again"] = line(opened)
        thaw()
        with opened() as again:
            result["statuses"] = sorted(each.status.value for each in again.outcomes())
        result["temporary"] = temporary.exists()
        """,
        mounts=False,
    )
    *told, closed = result["told"]
    for line in [*told, result["again"]]:
        assert line.startswith("DISK/out")
        assert line.endswith(" cannot be written: Read-only file system")
    assert closed is None
    assert result["same"]
    assert result["statuses"] == ["interrupted", "measured"]
    assert not result["temporary"]


def test_a_folder_that_is_removed_is_told_and_does_not_come_back(tmp_path: Path) -> None:
    result = run(
        tmp_path,
        """
        store = opened()
        attempt = begin(store, cells[0])
        end(store, attempt, cells[0])
        open_one = begin(store, cells[1])
        reader = SweepStore.open(root)
        shutil.rmtree(root)
        result["written"] = [
            line(begin, store, cells[2]),
            line(end, store, open_one, cells[1]),
            line(store.write_log, open_one, b"x"),
            line(store.compact),
            line(store.take_stock),
        ]
        result["read"] = [line(reader.outcomes), line(reader.tables), line(store.outcomes)]
        result["open"] = line(SweepStore.open, root)
        result["closed"] = line(store.close)
        result["left"] = files()
        result["writer"] = reader.writer()
        """,
        mounts=False,
    )
    assert set(result["written"]) <= {
        "DISK/out is gone: it was removed while it was written",
        "DISK/out is gone: it was removed while it was read",
    }
    assert set(result["read"]) == {"DISK/out is gone: it was removed while it was read"}
    assert result["open"] == "DISK/out is no sweep: there is no sweep.yaml in it"
    assert result["closed"] is None
    assert result["left"] == []
    assert result["writer"] is None


def test_a_folder_that_goes_away_while_it_is_read_is_told(tmp_path: Path) -> None:
    result = run(
        tmp_path,
        """
        from vllm_frontier.store import records, tables
        with opened() as store:
            for cell in cells[:4]:
                end(store, begin(store, cell), cell)
        kept = disk / "kept"
        shutil.copytree(root, kept)
        told = set()
        # Away at each file that is read, and at each step of making the tables.
        for room, name in ((records, "_content"), (tables, "trials"), (tables, "runs")):
            call = getattr(room, name)
            for moment in range(16 if name == "_content" else 1):
                left = [moment]
                def going(*args):
                    if left[0] == 0 and root.exists():
                        shutil.rmtree(root)
                    left[0] -= 1
                    return call(*args)
                setattr(room, name, going)
                told.add(line(SweepStore.open(root).tables))
                setattr(room, name, call)
                assert not root.exists()
                shutil.copytree(kept, root)
        result["told"] = sorted(map(str, told))
        """,
        mounts=False,
    )
    assert result["told"] == ["DISK/out is gone: it was removed while it was read"]
