"""Writers that are killed at each of their steps, and who may write after them."""

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from vllm_frontier.config import compose_sweep
from vllm_frontier.errors import StoreError
from vllm_frontier.identity import identify
from vllm_frontier.outcome import Status
from vllm_frontier.store import atomic
from vllm_frontier.store.sweep_store import SweepStore

SWEEP = ("demo-cpu", ["engine=simulated", "engine.card_file=tiny-8gib"])
COMPOSED = compose_sweep(*SWEEP)
IDENTITY = identify(COMPOSED.spec, "1")

# Writers of which each kills itself before its n-th step that changes a disk, in the folder n,
# from `first` on until one comes to its end; says how many were killed. They are forked, because
# a new interpreter for each takes its time.
WRITER = f"""
import io, os, signal, sys
from pathlib import Path

import pyarrow.parquet  # else each of them would import it
from vllm_frontier.config import compose_sweep
from vllm_frontier.identity import identify
from vllm_frontier.outcome import Outcome, Phase, Status
from vllm_frontier.store import rows, tables
from vllm_frontier.store.sweep_store import SweepStore

folder, last, step = Path(sys.argv[1]), int(sys.argv[2]), 0
composed = compose_sweep(*{SWEEP!r})
spec, config = composed.spec, composed.document
identity = identify(spec, "1")

def counted(call, counts=lambda *args: True):
    def stepping(*args, **options):
        global step
        if counts(*args):
            step += 1
            if step == last:
                os.kill(os.getpid(), signal.SIGKILL)
        return call(*args, **options)
    return stepping

class Half(io.FileIO):
    def write(self, content):
        # Half of it is on the disk when the kill comes.
        super().write(content[: len(content) // 2])
        killing()
        super().write(content[len(content) // 2 :])
        return len(content)

killing = counted(lambda: None)
for name in ("mkdir", "fsync", "rename", "replace", "unlink"):
    setattr(os, name, counted(getattr(os, name)))
os.open = counted(os.open, lambda path, flags, *rest: flags & (os.O_WRONLY | os.O_RDWR))
os.fdopen = lambda descriptor, mode: Half(descriptor, "w")
"""

BEGIN = """
store, resumed = SweepStore.create_or_open(root, config, identity)
"""
ATTEMPT = """
cell = spec.grid.cells()[0]
attempt = store.new_attempt(identity.cell_id(cell))
row = rows.interrupted_row(spec, identity, cell, attempt.number, started_at=1.0, engine_version="1")
store.write_attempt(attempt, row, {})
outcome = Outcome(Status.MEASURED, Phase.STOP, started_at=1.0, ended_at=2.0)
trial = rows.trial_row(spec, identity, cell, attempt.number, outcome, engine_version="1")
store.write_outcome(attempt, trial, [])
store.compact()
store.close()
"""
LOOP = """
killed = 0
while True:
    root = folder / str(last)
    writer = os.fork()
    if writer == 0:
        write()
        os._exit(0)
    _, status = os.waitpid(writer, 0)
    if status == 0:
        break
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, status
    killed, last = killed + 1, last + 1
print(killed)
"""


def killed(folder: Path, body: str, *, first: int = 1) -> range:
    """The steps before which a writer was killed, each in a folder of this name."""
    write = "def write():\n" + textwrap.indent(body, "    ")
    folder.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", WRITER + write + LOOP, str(folder), str(first)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return range(first, first + int(done.stdout))


def test_a_sweep_killed_before_it_began_is_told_and_can_begin(tmp_path: Path) -> None:
    left = set()
    for last in killed(tmp_path, BEGIN):
        root = tmp_path / str(last)
        left.add(tuple(sorted(each.name.rpartition(".")[2] for each in root.glob("*"))))
        if (root / "sweep.yaml").exists():
            assert SweepStore.open(root).outcomes() == []
        elif root.exists():
            for use in (SweepStore.open, SweepStore.open_for_writing):
                with pytest.raises(StoreError) as told:
                    use(root)
                assert str(told.value) == (
                    f"{root} is no sweep yet: it was ended before it began; "
                    f"`vllm-frontier run SWEEP --out {root}` starts it"
                )
        began = (root / "sweep.yaml").exists()
        opened, resumed = SweepStore.create_or_open(root, COMPOSED.document, IDENTITY)
        with opened:
            assert resumed == began
            names = sorted(each.name for each in root.iterdir())
            assert names == ["attempts", "lock", "lock.json", "sweep.yaml"]
    # The kills fell on every state there is.
    assert left >= {
        (),
        ("lock",),
        ("json", "lock"),
        ("lock", "tmp"),
        ("attempts", "json", "lock"),
        ("attempts", "json", "lock", "tmp"),
        ("attempts", "json", "lock", "yaml"),
    }


def test_an_attempt_killed_at_any_step_is_whole_or_interrupted(tmp_path: Path) -> None:
    begun = killed(tmp_path / "begun", BEGIN)
    seen = []
    for last in killed(tmp_path, BEGIN + ATTEMPT, first=begun.stop):
        root = tmp_path / str(last)
        # For who only looks, before anybody opens it again.
        statuses = [record.status for record in SweepStore.open(root).outcomes()]
        assert statuses in ([], [Status.INTERRUPTED], [Status.MEASURED])
        seen.append(statuses)
        with SweepStore.create_or_open(root, COMPOSED.document, IDENTITY)[0] as store:
            assert store.take_stock()[1] == []
            assert [record.status for record in store.outcomes()] == statuses
            assert not [path for path in root.rglob("*") if atomic.is_temporary(path)]
            store.compact()
            assert store.tables()[0]["status"].to_list() == [str(each) for each in statuses]
    # Once it is done it stays so.
    order = [[], [Status.INTERRUPTED], [Status.MEASURED]]
    assert seen == sorted(seen, key=order.index)
    assert all(each in seen for each in order)


HOLDER = """
import sys, time
from pathlib import Path
from vllm_frontier.spec import SweepIdentity
from vllm_frontier.store.sweep_store import SweepStore
store, _ = SweepStore.create_or_open(Path(sys.argv[1]), {}, SweepIdentity({"a": 1}, "w"))
print("held", flush=True)
time.sleep(60)
"""


def take(root: Path) -> SweepStore:
    from vllm_frontier.spec import SweepIdentity

    return SweepStore.create_or_open(root, {}, SweepIdentity({"a": 1}, "w"))[0]


def test_a_dead_writers_lock_is_taken_over_at_once(tmp_path: Path) -> None:
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        ) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(StoreError) as told:
                take(tmp_path)
            started = psutil.Process(holder.pid).create_time()
            document = json.loads((tmp_path / "lock.json").read_text())
            assert document["pid"] == holder.pid
            assert document["host"] == socket.gethostname()
            # Both add up what the kernel tells in whole seconds, which may turn in between.
            assert abs(document["process_started_at"] - started) < 2.1
            assert str(told.value).startswith(
                f"{tmp_path} is being written by pid {holder.pid} on {socket.gethostname()} since "
            )
            # Who reads needs no lock.
            reader = SweepStore.open(tmp_path)
            assert reader.outcomes() == []
            writer = reader.writer()
            assert writer is not None
            assert writer.pid == holder.pid
            holder.send_signal(signal.SIGKILL)
        assert reader.writer() is None
    began = time.monotonic()
    with take(tmp_path):
        assert time.monotonic() - began < 30  # of which the machine may take some
        writer = reader.writer()
        assert writer is not None
        assert writer.pid == os.getpid()


def test_a_pid_that_another_process_has_now_is_not_the_holder(tmp_path: Path) -> None:
    take(tmp_path).close()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        now = time.time()
        document = {
            "pid": other.pid,
            "host": socket.gethostname(),
            "process_started_at": psutil.Process(other.pid).create_time() - 3600,
            "since": now - 3500,
        }
        (tmp_path / "lock.json").write_text(json.dumps(document))
        assert SweepStore.open(tmp_path).writer() is None
        with take(tmp_path):
            pass
        other.communicate(b"\n")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 1}', '{"pid": "x", "host": 3}'])
def test_a_broken_word_about_the_holder_stops_nobody(tmp_path: Path, content: str) -> None:
    take(tmp_path).close()
    (tmp_path / "lock.json").write_text(content)
    assert SweepStore.open(tmp_path).writer() is None
    with take(tmp_path), pytest.raises(StoreError, match=f"is being written by pid {os.getpid()}"):
        take(tmp_path)


def test_a_lock_whose_holder_is_not_named_yet_is_a_lock(tmp_path: Path) -> None:
    code = textwrap.dedent("""
        import fcntl, os, sys
        descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        print("held", flush=True)
        input()
    """)
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StoreError, match="is being written by another process"):
            take(tmp_path)
        holder.communicate("\n")
    take(tmp_path).close()
