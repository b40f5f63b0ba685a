"""Folders that name their owner: found when it is gone, let be while anybody works in them."""

import json
import os
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from vllm_frontier.launch import folders, processes
from vllm_frontier.launch.folders import (
    owned_folder,
    private_tmp,
    remove_abandoned,
    remove_tmp,
    remove_tmp_of,
)
from vllm_frontier.launch.segments import NOTES


@pytest.fixture(autouse=True)
def own_tmp(monkeypatch: pytest.MonkeyPatch) -> Path:
    """All folders in one that nobody else uses; pytest's own would be too long a path."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t-") as name:
        monkeypatch.setattr(tempfile, "tempdir", name)
        monkeypatch.setattr(folders, "_SHORT", Path(name))
        yield Path(name)  # type: ignore[misc]


def of_a_dead_process(prefix: str = "vf-") -> Path:
    """A folder that a process made that is gone."""
    code = (
        f"from vllm_frontier.launch.folders import *; print(owned_folder({prefix!r}, longest=70))"
    )
    made = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"TMPDIR": tempfile.gettempdir()},
        capture_output=True,
        text=True,
        check=True,
    )
    folder = Path(made.stdout.strip())
    assert folder.is_dir()
    return folder


def test_a_name_tells_who_made_it() -> None:
    me = processes.read_process(os.getpid())
    assert me is not None
    folder, ray = private_tmp(), owned_folder("vf-ray-", longest=40)
    assert folder.name.startswith(f"vf-{me.pid}-{me.start}-")
    assert ray.name.startswith(f"vf-ray-{me.pid}-{me.start}-")
    for each in (folder, ray):
        assert stat.S_IMODE(each.stat().st_mode) == 0o700
        assert folders._NAME.fullmatch(each.name)
    assert len(str(folder)) + 37 <= 107
    # The largest pid, and three years since boot.
    assert len("/tmp/vf-4194304-9999999999-abcd-abcd") + 37 <= 107
    assert remove_abandoned() == []


def test_a_long_folder_gives_way_to_a_short_one(
    own_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = own_tmp / ("long" * 8)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    assert owned_folder("vf-ray-", longest=200).parent == long
    assert owned_folder("vf-ray-", longest=40).parent == own_tmp


def test_a_dead_owners_folder_is_removed_with_its_segments() -> None:
    folder, ray = of_a_dead_process(), of_a_dead_process("vf-ray-")
    segment = Path("/dev/shm") / f"psm_{folder.name[-4:]}{os.getpid()}"
    segment.write_bytes(b"x")
    shm = Path("/dev/shm").stat().st_dev
    header = {"boot": processes.boot_id(), "device": shm, "before": []}
    entry = {"name": segment.name, "inode": segment.stat().st_ino}
    (folder / NOTES).write_text(f"{json.dumps(header)}\n{json.dumps(entry)}\n")
    (folder / "deep").mkdir()
    (folder / "deep" / "file").write_text("x")
    mine = private_tmp()
    assert sorted(remove_abandoned()) == sorted([folder, ray])
    assert not segment.exists()
    assert not folder.exists()
    assert mine.exists()
    assert remove_abandoned() == []


@pytest.mark.parametrize("how", ["cwd", "TMPDIR", "argument"])
def test_a_folder_stays_while_somebody_works_in_it(how: str) -> None:
    folder = of_a_dead_process()
    (folder / "deep").mkdir()
    argv = ["/bin/sleep", "600"]
    if how == "argument":
        argv = ["/bin/sh", "-c", "sleep 600; :", str(folder / "r")]
    process = subprocess.Popen(
        argv,
        cwd=folder / "deep" if how == "cwd" else "/",
        env=os.environ | ({"TMPDIR": str(folder)} if how == "TMPDIR" else {}),
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while how == "TMPDIR" and str(folder).encode() not in (
        processes.read_proc(f"/proc/{process.pid}/environ") or b""
    ):
        assert time.monotonic() < deadline
    try:
        assert remove_abandoned() == []
    finally:
        os.killpg(process.pid, 9)
        process.wait()
    assert remove_abandoned() == [folder]


def test_what_the_owner_left_running_is_ended_with_its_folder() -> None:
    folder, launch = of_a_dead_process("vf-ray-"), of_a_dead_process()
    log, other = folder / "agent.log", launch / "log"
    with log.open("w") as one, other.open("w") as two:
        agent = subprocess.Popen(["/bin/sleep", "600"], cwd="/", stdout=one)
        server = subprocess.Popen(["/bin/sleep", "600"], cwd="/", stdout=two)
    with log.open() as file:
        reader = subprocess.Popen(["/bin/sleep", "600"], cwd="/", stdin=file)
    try:
        assert remove_abandoned() == [folder]
        assert agent.wait(60) == -9
        assert reader.poll() is None
        assert server.poll() is None
    finally:
        for process in (server, reader):
            process.kill()
            process.wait()
    assert remove_abandoned() == [launch]


def test_what_is_not_certainly_abandoned_stays(own_tmp: Path) -> None:
    kept = own_tmp / "elsewhere"
    kept.mkdir()
    dead = of_a_dead_process()
    other_name, file = own_tmp / "vf-270tc3u7", own_tmp / dead.name.replace("vf-", "vf-x-")
    other_name.mkdir()
    file.write_text("x")
    link = own_tmp / f"{dead.name[:-4]}abcd"
    link.symlink_to(kept)
    where = dead.name.split("-")[3]
    elsewhere = own_tmp / dead.name.replace(f"-{where}-", f"-{int(where, 16) ^ 1:04x}-")
    elsewhere.mkdir()
    assert remove_abandoned() == [dead]
    for each in (other_name, link, file, elsewhere, kept):
        assert each.exists()


def test_folders_of_a_container_stay_while_it_lives_and_ours_there(own_tmp: Path) -> None:
    """A pid namespace of its own, over the same folder for temporary files."""
    code = (
        "import sys, tempfile; from pathlib import Path\n"
        "from vllm_frontier.launch import folders\n"
        f"tempfile.tempdir = {str(own_tmp)!r}; folders._SHORT = Path({str(own_tmp)!r})\n"
        "print(folders.private_tmp(), len(folders.remove_abandoned()), flush=True); input()"
    )
    own, dead = private_tmp(), of_a_dead_process()
    unshare = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine lets nobody make a namespace")
    with subprocess.Popen(
        [*unshare, sys.executable, "-c", code],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as container:  # fmt: skip
        assert container.stdout is not None
        theirs, removed = container.stdout.readline().split()
        assert removed == "0"
        assert own.exists()
        assert dead.exists()
        assert remove_abandoned() == [dead]
        assert Path(theirs).exists()
        container.communicate("\n", timeout=60)


def test_a_clock_that_was_set_forward_makes_nothing_abandoned(
    own_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = own_tmp / "vf-results"
    theirs.mkdir()
    (theirs / "thesis.txt").write_text("x")
    own = private_tmp()
    monkeypatch.setattr(processes, "boot_time", lambda: time.time() + 60)
    assert remove_abandoned() == []
    assert (theirs / "thesis.txt").exists()
    assert own.exists()


def test_what_a_file_names_is_removed_only_if_its_process_made_it(own_tmp: Path) -> None:
    me = processes.ProcessId.of(os.getpid())
    assert me is not None
    theirs = own_tmp / "vf-thesis"
    theirs.mkdir()
    own = private_tmp()
    other = processes.ProcessId(me.pid + 1, me.start_time)
    assert not remove_tmp_of(me, theirs)
    assert not remove_tmp_of(other, own)
    assert theirs.exists()
    assert own.exists()
    assert remove_tmp_of(me, own)
    assert not own.exists()


def test_the_boot_was_before_this_process() -> None:
    assert 0 < processes.boot_time() < time.time()


def test_removing_again_and_removing_others(own_tmp: Path) -> None:
    folder = private_tmp()
    assert remove_tmp(folder)
    assert remove_tmp(folder)
    other = own_tmp / "vf-other"
    other.mkdir()
    assert remove_tmp(other) is False
    assert other.exists()
