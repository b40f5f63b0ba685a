"""Temporary folders that name their owner, so that those of the killed are found and removed.

`vf-<pid>-<start>-<where>-<random>` belongs to the process with that pid that started at that many
clock ticks since boot; `<where>` is a digest of the boot and the pid namespace in which these
numbers mean something.

The supervisor uses this, too, and has the standard library only.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from vllm_frontier.launch import processes, segments

TMP_PREFIX = "vf-"

# The path of a socket has at most 107 characters, a slash and 36 for its own name included.
_TMP_LONGEST = 107 - 37
_NAME = re.compile(
    r"vf-(?:(?P<word>[a-z]+)-)?(?P<pid>\d+)-(?P<start>\d+)-(?P<where>[0-9a-f]{4})-[0-9a-f]{4}"
)
_SHORT = Path("/tmp")
_END_S = 5.0
_POLL_S = 0.01


def owned_folder(prefix: str, *, longest: int) -> Path:
    """A new folder of this process, with mode 0700.

    Args:
        prefix: what its name begins with: `vf-`, or `vf-` and a word and `-`.
        longest: how many characters its path may have; where the system's folder for temporary
            files leads to a longer one, it is made in `/tmp`.

    Raises:
        OSError: it cannot be made, for want of space or permission.
    """
    import tempfile  # the supervisor does without it

    me = processes.read_process(os.getpid())
    name = f"{prefix}{os.getpid()}-{me.start if me else 0}-{_here()}-"
    parent = Path(tempfile.gettempdir())
    too_long = len(str(parent / name)) + 4 > longest
    if too_long and os.access(_SHORT, os.W_OK | os.X_OK):
        parent = _SHORT
    while True:
        folder = parent / (name + os.urandom(2).hex())
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            return folder


def private_tmp() -> Path:
    """A new folder for one launch's temporary files, with a short path and mode 0700.

    Raises:
        OSError: it cannot be made, for want of space or permission.
    """
    return owned_folder(TMP_PREFIX, longest=_TMP_LONGEST)


def remove_tmp(folder: Path) -> bool:
    """Remove a folder that `owned_folder` made, all in it, and the segments noted there.

    Returns:
        Whether it is gone; False also for a folder that is not such a one.
    """
    import shutil  # the supervisor needs it at its end only

    if not _is_owned(folder):
        return not os.path.lexists(folder) and _NAME.fullmatch(folder.name) is not None
    segments.remove_segments(segments.read_notes(folder).segments)
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def remove_tmp_of(owner: processes.ProcessId, folder: Path) -> bool:
    """The same, if its name says that this process made it; for what a file names."""
    match = _NAME.fullmatch(folder.name)
    if match is None:
        return False
    named = match["pid"], match["start"]
    return named == (str(owner.pid), owner.start_time.rpartition("/")[2]) and remove_tmp(folder)


def remove_abandoned() -> list[Path]:
    """Remove our own folders whose owner is gone and in which nobody works, and their segments.

    Where the name has a word (`vf-ray-...`), whatever still has a file in it open for writing
    is what the owner left running, and is ended; a launch's processes are not (they are found by
    their supervisor, see `leftovers`), and keep its folder. Folders of another container, of
    another machine and of before this boot stay: whether their owner runs cannot be told.

    Returns:
        What was removed.
    """
    found = [folder for folder in _folders() if _is_abandoned(folder)]
    _end_writers([folder for folder in found if _has_word(folder)])
    in_use = _in_use(found) if found else set()
    return [folder for folder in found if folder not in in_use and remove_tmp(folder)]


def _here() -> str:
    """Where a pid and a start time mean one process."""
    namespace = ""
    with contextlib.suppress(OSError):
        namespace = str(Path("/proc/self/ns/pid").readlink())
    return hashlib.sha256(f"{processes.boot_id()} {namespace}".encode()).hexdigest()[:4]


def _folders() -> list[Path]:
    """What has the prefix, where such folders are made."""
    import tempfile

    found = []
    for parent in sorted({Path(tempfile.gettempdir()), _SHORT}):
        with contextlib.suppress(OSError):
            found += list(parent.glob(f"{TMP_PREFIX}*"))
    return found


def _is_owned(folder: Path) -> bool:
    """Whether this is a folder of our user that `owned_folder` made."""
    if _NAME.fullmatch(folder.name) is None or folder.is_symlink():
        return False
    try:
        return folder.is_dir() and folder.lstat().st_uid == os.geteuid()
    except OSError:
        return False


def _is_abandoned(folder: Path) -> bool:
    match = _NAME.fullmatch(folder.name)
    return (
        match is not None and match["where"] == _here() and not _runs(match) and _is_owned(folder)
    )


def _has_word(folder: Path) -> bool:
    match = _NAME.fullmatch(folder.name)
    return match is not None and match["word"] is not None


def _runs(owner: re.Match[str]) -> bool:
    process = processes.read_process(int(owner["pid"]))
    return process is not None and process.alive and process.start == int(owner["start"])


def _end_writers(folders: Collection[Path]) -> None:
    """SIGKILL to the processes that write into folders; those of Ray retitle themselves."""
    deadline = time.monotonic() + _END_S
    while (writers := _writers(folders)) and time.monotonic() < deadline:
        for pid in writers:
            processes.kill_process(pid)
        time.sleep(_POLL_S)


def _writers(folders: Collection[Path]) -> dict[int, set[Path]]:
    """Living processes, but this one, that have a file of a folder open for writing."""
    if not folders:
        return {}
    below = {os.fsencode(folder) + b"/": folder for folder in folders}
    table = processes.process_table()
    alive = [pid for pid, each in table.items() if each.alive and pid != os.getpid()]
    return {pid: written for pid in alive if (written := _written_by(pid, below))}


def _written_by(pid: int, below: Mapping[bytes, Path]) -> set[Path]:
    found: set[Path] = set()
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
        for entry in entries:
            path = _link(entry.path)
            into = {folder for prefix, folder in below.items() if path.startswith(prefix)}
            if into and _is_writable(pid, entry.name):
                found |= into
    return found


def _is_writable(pid: int, fd: str) -> bool:
    told = processes.read_proc(f"/proc/{pid}/fdinfo/{fd}") or b""
    flags = re.search(rb"^flags:\s*(\d+)$", told, re.MULTILINE)
    return flags is not None and int(flags[1], 8) & os.O_ACCMODE != os.O_RDONLY


def _in_use(folders: Collection[Path]) -> set[Path]:
    """Those that a process writes into, has as working folder, TMPDIR or argument."""
    marks = {folder: os.fsencode(folder) for folder in folders}
    found: set[Path] = set().union(*_writers(folders).values())
    for pid, process in processes.process_table().items():
        if not process.alive:
            continue
        text = b"\0".join(
            (
                _link(f"/proc/{pid}/cwd"),
                _variable(pid, b"TMPDIR"),
                processes.read_proc(f"/proc/{pid}/cmdline") or b"",
            )
        )
        found |= {folder for folder, mark in marks.items() if mark in text}
    return found


def _link(path: str) -> bytes:
    try:
        return os.fsencode(Path(path).readlink())
    except OSError:
        return b""


def _variable(pid: int, name: bytes) -> bytes:
    environment = processes.read_proc(f"/proc/{pid}/environ") or b""
    _, mark, rest = (b"\0" + environment).partition(b"\0" + name + b"=")
    return rest.partition(b"\0")[0] if mark else b""
