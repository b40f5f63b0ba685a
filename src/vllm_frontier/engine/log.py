"""A server log as a stream of cleaned lines.

A log of vLLM is written by several processes at once. Its lines carry process names, levels
and source files in forms that changed with the versions, colours, time stamps of whoever
collected them, progress bars that overwrite themselves with carriage returns, and now and
then bytes that are no UTF-8. What is read here is bytes as they come, in constant memory.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

MAX_LINE_BYTES = 16 * 1024  # what is kept of one line; no figure of interest lies behind it

_ANSI = re.compile(rb"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07]*\x07|[@-Z\\-_])")
# Added by whoever collected the log: ISO time (kubectl, docker -t, CRI), compose, journald.
_OUTER = re.compile(
    r"""^\ufeff?(?:
        \[pod/[^\]\s]*\][ ]
      | \[?\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?[ ]?
        (?:(?:stdout|stderr)[ ][FP][ ]|[\w.-]+[ ][\w.@/-]+\[\d+\]:[ ])?
      | [A-Z][a-z]{2}[ ][ \d]\d[ ]\d\d:\d\d:\d\d(?:\.\d+)?[ ]\S+[ ][\w.@/-]+\[\d+\]:[ ]
      | [\w.-]+[ ]*[ ]\|[ ]
    )+""",
    re.VERBOSE,
)
_PROCESS = r"\((?P<process>[A-Za-z][\w.-]*)(?:[ ]rank=\d+)?[ ]pid=(?P<pid>\d+)(?:,[ ]ip=[^)]*)?\)"
_PROCESS_ONLY = re.compile(_PROCESS + r"[ ]?", re.VERBOSE)
_LEVEL = re.compile(
    r"""(?:\[[A-Z]\w*-\d+\][ ])?(?:
        (?P<vllm>DEBUG|INFO|WARNING|ERROR|CRITICAL)[ ]\d\d-\d\d[ ]\d\d:\d\d:\d\d(?:\.\d+)?[ ]
          (?:\[[^\]\s]+\]|[\w./-]+\.py:\d+\])[ ]?
      | \d{4}-\d\d-\d\d[ ]\d\d:\d\d:\d\d,\d+[ ]-[ ](?P<python>[A-Z]+)[ ]-[ ](?:\S+:\d+[ ]-[ ])?
      | (?P<uvicorn>DEBUG|INFO|WARNING|ERROR|CRITICAL):[ ]+
      | (?:\[rank\d+\]:)?\[?(?P<glog>[IWEFV])\d{3,4}[ ]\d\d:\d\d:\d\d[.\d]*[ ]
    )""",
    re.VERBOSE,
)
# An error of the C++ side at most precedes an exception; inductor logs failed probes as E.
_GLOG = {"I": "INFO", "W": "WARNING", "E": "WARNING", "F": "CRITICAL", "V": "DEBUG"}
# Where the records of collectors have the text, and where the traceback that goes with it.
_RECORD_TEXT = ("log", "message", "MESSAGE", "msg")
_RECORD_TRACE = ("exc_info", "stack_info")
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_PROGRESS_THEN_LINE = re.compile(
    rb"(?:\d+%\|[^\n]*?|(?:it|s|profile)/(?:s|it)\])(?=\([A-Za-z][\w.-]*(?: rank=\d+)? pid=\d"
    rb"|(?:INFO|WARNING|ERROR) \d\d-\d\d \d|Traceback \(most|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,)"
)


TAIL_LINES = 200
_TAIL_BYTES = 256 * 1024


def last_lines(path: Path, count: int = TAIL_LINES) -> str:
    """The last lines of a log, of whatever is in its last 256 KiB; empty where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            data = file.read()
    except OSError:
        return ""
    lines = data.decode("utf-8", "replace").rstrip("\n").split("\n")[-count:]
    # Of a line that overwrites itself, what it came to.
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)


_MAGIC = {
    b"\x1f\x8b": "it is compressed; try `gzip -dc FILE | vllm-frontier explain -`",
    b"\x28\xb5\x2f\xfd": "it is compressed; try `zstd -dc FILE | vllm-frontier explain -`",
    b"\xfd7zXZ": "it is compressed; try `xz -dc FILE | vllm-frontier explain -`",
    b"BZh": "it is compressed; try `bzip2 -dc FILE | vllm-frontier explain -`",
    b"\xff\xfe": "it is UTF-16; convert it to UTF-8",
    b"\xfe\xff": "it is UTF-16; convert it to UTF-8",
    b"\x7fELF": "it is a program",
    b"PK\x03\x04": "it is an archive",
}


def not_text(stream: BinaryIO) -> str | None:
    """Why a stream cannot be a log, by its first bytes, which stay unread; None if it can."""
    if not isinstance(stream, io.BufferedReader):
        return None
    head = stream.peek(8)
    return next((why for magic, why in _MAGIC.items() if head.startswith(magic)), None)


class LogLine(NamedTuple):
    """One line without what the processes and collectors put before it.

    Attributes:
        number: 1-based; the parts of a line that overwrites itself share one number.
        text: the message, its indentation kept.
        process: who wrote it, such as `EngineCore_DP0/123`; empty where the line does not say.
        level: DEBUG, INFO, WARNING, ERROR or CRITICAL; empty where the line has none.
    """

    number: int
    text: str
    process: str
    level: str


class LineSplitter:
    """Cuts a growing log into numbered raw lines, whatever the size of its pieces."""

    def __init__(self) -> None:
        self._pending = b""
        self.number = 1

    @property
    def pending(self) -> bytes:
        """The beginning of a line that is not complete yet."""
        return self._pending

    def skip(self, chunk: bytes) -> None:
        """Count the lines that a chunk completes without giving them."""
        self.number += chunk.count(b"\n")
        _, line_feed, tail = chunk.rpartition(b"\n")
        self._pending = (tail if line_feed else self._pending + chunk)[: 4 * MAX_LINE_BYTES]

    def feed(self, chunk: bytes) -> Iterator[tuple[int, bytes]]:
        """Give the raw lines that a chunk completes, with their numbers."""
        lines = (self._pending + chunk).split(b"\n")
        self._pending = lines.pop()
        number = self.number
        for line in lines:
            self.number = number + 1
            if line.startswith((b'{"', b'{ "')) or b"\r" in line or b"%|" in line:
                yield from ((number, part) for part in _parts(line))
            else:
                yield number, line
            number += 1
        if b"\r" in self._pending:
            # A progress bar without a line feed: its finished states are already news.
            head, _, self._pending = self._pending.rpartition(b"\r")
            yield from ((number, part) for part in _parts(head))
        self._pending = self._pending[: 4 * MAX_LINE_BYTES]

    def close(self) -> Iterator[tuple[int, bytes]]:
        """Give what is left at the end of a log that does not end with a line feed."""
        rest, self._pending = self._pending, b""
        if rest:
            yield from ((self.number, part) for part in _parts(rest))


def _lines_of_record(line: bytes) -> list[bytes]:
    """The lines in a JSON record of Docker, journald or Python's JSON logging.

    They get the form that vLLM gives them itself; what is no such record stays as it is.
    """
    try:
        record = json.loads(line)
    except ValueError:
        return [line]
    text = next((record[name] for name in _RECORD_TEXT if isinstance(record.get(name), str)), None)
    if text is None:
        return [line]
    told = [text, *(record[name] for name in _RECORD_TRACE if isinstance(record.get(name), str))]
    lines = [part for each in told for part in each.rstrip("\n").split("\n")]
    level, process = record.get("levelname"), record.get("processName")
    pid = record.get("process", 0)
    prefix = f"({process} pid={pid}) " if process and str(pid).isdigit() else ""
    if level in _LEVELS:
        prefix += f"{level} 01-01 00:00:00 [record.py:1] "
    return [f"{prefix}{part}".encode() for part in lines]


def _parts(line: bytes) -> Iterator[bytes]:
    if line.startswith((b'{"', b'{ "')):
        yield from _lines_of_record(line)
        return
    for part in line.split(b"\r"):
        if not part:
            continue
        # tqdm leaves the cursor behind its bar; another process may go on from there.
        match = _PROGRESS_THEN_LINE.search(part) if b"%|" in part else None
        if match:
            yield part[: match.end()]
            yield part[match.end() :]
        else:
            yield part


def clean(number: int, raw: bytes) -> LogLine:
    """Take a raw line apart."""
    if b"\x1b" in raw:
        raw = _ANSI.sub(b"", raw)
    text = raw[:MAX_LINE_BYTES].decode("utf-8", "replace")
    process = ""
    # Nearly every line starts in one of these ways; the searches behind them are dear.
    first = text[:1]
    if first.isalnum() or first in "[\ufeff":
        outer = _OUTER.match(text)
        if outer:
            text = text[outer.end() :]
            first = text[:1]
    while first == "(":
        match = _PROCESS_ONLY.match(text)
        if not match:
            break
        process = f"{match['process']}/{match['pid']}"
        text = text[match.end() :]
        first = text[:1]
    level = ""
    if first.isalnum() or first == "[":
        match = _LEVEL.match(text)
        if match:
            glog = match["glog"]
            level = match["vllm"] or match["python"] or match["uvicorn"] or _GLOG[glog]
            text = text[match.end() :]
    return LogLine(number, text.rstrip(), process, level)
