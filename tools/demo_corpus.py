"""Training text of the demo model: Python's standard library, plain and as chat samples.

Everything comes from the Python distribution that runs this script (source, docstrings, comments
and the reference topics of ``pydoc``), under the PSF licence. Three kinds of chat sample are cut
from it, the kinds of work that speculation is measured on: an edit repeats a file with one
change, code follows a specification, prose explains. Names in the code are exchanged at random,
so that the model has to read its prompt rather than recite the library.
"""

from __future__ import annotations

import ast
import builtins
import collections
import inspect
import keyword
import math
import random
import re
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a careful programmer.",
    "You are an experienced engineer. Answer precisely.",
    "You write clear code and clear English.",
)
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Folders that hold tests, generated tables or text of other authors; skipped for names.
SKIPPED = frozenset(
    ("test", "tests", "idle_test", "site-packages", "encodings", "pydoc_data", "lib2to3")
)
# What is read as code. A model this small writes better after reading little text often than
# after reading much text once.
MODULES = re.findall(
    r"\w+",
    """
    base64, bisect, calendar, cmd, code, codeop, colorsys, contextlib, copy, fileinput,
    filecmp, fnmatch, getopt, getpass, gettext, glob, graphlib, gzip, hmac, linecache,
    mailcap, netrc, numbers, pprint, profile, queue, quopri, random, reprlib, sched,
    secrets, shelve, sndhdr, stat, string, tempfile, textwrap, timeit, uuid, weakref
    """,
)


@dataclass
class Corpus:
    """Raw material of the samples.

    Attributes:
        files: Names and texts of the chosen modules.
        passages: Runs of prose paragraphs.
        pieces: The chosen modules as lines and top-level statements.
        names: Words of the whole library to make identifiers of.
        document_frequency: In how many passages a word occurs.
    """

    files: list[tuple[str, str]] = field(default_factory=list)
    passages: list[list[str]] = field(default_factory=list)
    pieces: list[tuple[str, list[str], list[ast.stmt]]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    document_frequency: collections.Counter[str] = field(default_factory=collections.Counter)


def _is_prose(paragraph: str) -> bool:
    """Tell running English from code, tables, lists and headings."""
    letters = sum(c.isalpha() or c.isspace() for c in paragraph)
    return (
        len(paragraph) >= 90
        and paragraph[0].isupper()
        and paragraph[-1] in ".?!"
        and letters / len(paragraph) > 0.88
        and not re.search(r">>>|::|\.\. |\(C\)|[Cc]opyright|https?:|\s{3,}|@", paragraph)
    )


def _passages(text: str) -> list[list[str]]:
    """Split a text into runs of at least one prose paragraph, lines unwrapped."""
    runs: list[list[str]] = [[]]
    for paragraph in re.split(r"\n\s*\n", text):
        joined = " ".join(paragraph.split()).replace(" -- ", ", ")
        if _is_prose(joined):
            runs[-1].append(re.sub(r"\[\d+\]|\*(\w+)\*", r"\1", joined))
        elif runs[-1] and len(joined) > 60:
            runs.append([])
    return [run for run in runs if run]


def _read(path: Path) -> tuple[str, ast.Module] | None:
    """Return the text and the tree of a file that is fit to train on."""
    text = path.read_text(encoding="utf-8", errors="replace").expandtabs()
    if not text or not text.isascii() or max(map(len, text.splitlines())) > 130:
        return None
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return None
    return (text, tree) if tree.body else None


def _english(text: str, tree: ast.Module) -> list[list[str]]:
    """Collect the prose in the docstrings and comments of one file."""
    found: list[list[str]] = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            found += _passages(ast.get_docstring(node) or "")
    for block in re.findall(r"(?:^[ ]*# .*\n){3,}", text, flags=re.MULTILINE):
        found += _passages(re.sub(r"(?m)^ *# ?", "", block))
    return found


def load() -> Corpus:
    """Read the standard library of the running interpreter."""
    root = Path(sysconfig.get_path("stdlib"))
    corpus = Corpus()
    counts: collections.Counter[str] = collections.Counter()
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if SKIPPED.intersection(parts):
            continue
        read = _read(path)
        if read is None:
            continue
        text, tree = read
        if len(parts) == 1 and path.stem in MODULES:
            corpus.files.append((path.name, text))
            corpus.pieces.append((path.name, text.splitlines(), tree.body))
            corpus.passages += _english(text, tree)
        counts.update({word for word in WORD.findall(text) if 3 <= len(word) <= 16})
    from pydoc_data.topics import topics

    for _, text in sorted(topics.items()):
        corpus.passages += _passages(inspect.cleandoc(text))
    reserved = set(keyword.kwlist) | set(dir(builtins)) | sys.stdlib_module_names
    corpus.names = sorted(
        word
        for word, n in counts.items()
        if word.islower() and word not in reserved and n < 60 and not word.startswith("_")
    )
    for run in corpus.passages:
        corpus.document_frequency.update(set(re.findall(r"[a-z]{5,}", " ".join(run).lower())))
    return corpus


def _camel(name: str) -> str:
    """Turn a name with underscores into one for a class."""
    return "".join(part.title() for part in name.split("_"))


def render(messages: list[tuple[str, str]]) -> str:
    """Write a conversation the way the model's chat template does."""
    return "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in messages)


class Samples:
    """Endless training samples drawn from a corpus by one seeded generator."""

    def __init__(self, corpus: Corpus, seed: int) -> None:
        self.corpus = corpus
        self.random = random.Random(seed)

    def plain(self) -> str:
        """A stretch of source as it stands."""
        _, text = self.random.choice(self.corpus.files)
        start = self.random.randrange(max(1, len(text) - 3000))
        start = text.find("\n", start) + 1
        return text[start : start + 3000]

    def _name(self) -> str:
        """A made-up identifier of one or two words."""
        words = [self.random.choice(self.corpus.names) for _ in range(self.random.choice((1, 2)))]
        return "_".join(words)[:28].strip("_")

    def _file(self, low: int, high: int) -> tuple[str, str, list[ast.stmt]]:
        """Cut ``low`` to ``high`` characters of whole top-level statements from one file."""
        while True:
            name, lines, body = self.random.choice(self.corpus.pieces)
            first = 0 if self.random.random() < 0.25 else self.random.randrange(len(body))
            chosen: list[ast.stmt] = []
            decorators = getattr(body[first], "decorator_list", [])
            start = min([body[first].lineno, *(d.lineno for d in decorators)])
            cut = ""
            for node in body[first:]:
                text = "\n".join(lines[start - 1 : node.end_lineno])
                if len(text) > high:
                    break
                chosen.append(node)
                cut = text
            if chosen and len(cut) >= low and "def " in cut:
                if self.random.random() < 0.6:
                    name = self._name() + ".py"
                return name, cut, chosen

    def _exchange(self, text: str, share: float) -> tuple[str, dict[str, str]]:
        """Exchange a share of the identifiers that the text defines itself."""
        defined = sorted(set(re.findall(r"(?:def|class) (\w+)|^\s*(\w+) = |(\w+)=", text, re.M)))
        found = sorted({w for t in defined for w in t if len(w) > 2 and not w.startswith("__")})
        mapping = {w: self._name() for w in found if self.random.random() < share}
        for word, new in mapping.items():
            if word[0].isupper():
                mapping[word] = _camel(new)
        return WORD.sub(lambda m: mapping.get(m.group(), m.group()), text), mapping

    def edit(self, low: int, high: int) -> tuple[str, str]:
        """A file with an instruction, and the file with the change."""
        pick = self.random.choice
        name, text, _ = self._file(low, high)
        text, _ = self._exchange(text, pick((0.3, 0.6, 0.9)))
        kinds = [(kind, word) for kind, word in re.findall(r"(def|class) (\w+)", text)]
        numbers = re.findall(r"^(\w+) = (\d+)$", text, re.M)
        if numbers and self.random.random() < 0.3:
            word, old = pick(numbers)
            new = str(self.random.randrange(1, 500))
            changed = re.sub(rf"(?m)^{word} = {old}$", f"{word} = {new}", text)
            task = f"Change the value of `{word}` from {old} to {new}."
        else:
            if self.random.random() < 0.25:
                kinds = [("var", w) for w in re.findall(r"\b([a-z_]{3,}) = ", text)] or kinds
            kind, word = pick(kinds)
            new = self._name()
            if kind == "class":
                new = _camel(new)
            changed = re.sub(rf"\b{re.escape(word)}\b", new, text)
            label = {
                "def": pick(("function", "function", "method")),
                "class": "class",
                "var": pick(("variable", "name")),
            }[kind]
            task = pick(
                (
                    f"Rename the {label} `{word}` to `{new}`.",
                    f"Rename `{word}` to `{new}` everywhere.",
                )
            )
        end = pick(
            (
                "Give the whole file back with this change and nothing else.",
                "Give the whole file back with this change and nothing else.",
                "Return the complete file and nothing else.",
            )
        )
        begin = pick(("Here is the file", "Here is the file", "This is the file"))
        prompt = f"{begin} `{name}`:\n\n```python\n{text}\n```\n\n{task} {end}"
        return prompt, f"```python\n{changed}\n```"

    def code(self, low: int, high: int) -> tuple[str, str]:
        """A specification made from names and docstrings, and the code it describes."""
        pick = self.random.choice
        name, text, nodes = self._file(low, high)
        if not any(isinstance(node, (ast.FunctionDef, ast.ClassDef)) for node in nodes):
            return self.code(low, high)
        bullets: list[str] = []
        for node in nodes:
            if isinstance(node, ast.FunctionDef):
                bullets.append(self._describe(node, "function"))
            elif isinstance(node, ast.ClassDef):
                said = self._sentence(node)
                bullets.append(f"A class `{node.name}`" + (f": {said}" if said else "."))
                methods = [n for n in node.body if isinstance(n, ast.FunctionDef)]
                bullets += [self._describe(m, "method") for m in methods[:8]]
        joined = "\n".join(f"- {bullet}" for bullet in bullets[:10])
        text, mapping = self._exchange(text, pick((0.0, 0.3, 0.6)))
        joined = WORD.sub(lambda m: mapping.get(m.group(), m.group()), joined)
        end = pick(("Answer with the code only.", "Answer with the code only.", "Only the code."))
        prompt = f"Write a Python module `{name}`.\n\nSpecification:\n{joined}\n\n{end}"
        return prompt, f"```python\n{text}\n```"

    def _sentence(self, node: ast.FunctionDef | ast.ClassDef) -> str:
        """First sentence of a docstring."""
        text = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
        return text.split(". ")[0].rstrip(".")[:140] + "." if text else ""

    def _describe(self, node: ast.FunctionDef, noun: str) -> str:
        arguments = ", ".join(a.arg for a in node.args.args if a.arg != "self")
        said = self._sentence(node)
        call = f"`{node.name}({arguments})`"
        if said and self.random.random() < 0.5:
            return f"{call}: {said}"
        return f"A {noun} {call}" + (f". {said}" if said else ".")

    def prose(self, low: int, high: int) -> tuple[str, str]:
        """A question built from the rare words of a passage, and the passage."""
        pick = self.random.choice
        runs = self.corpus.passages
        chosen: list[str] = []
        index = self.random.randrange(len(runs))
        offset = self.random.randrange(len(runs[index]))
        while sum(map(len, chosen)) < low:
            for paragraph in runs[index % len(runs)][offset:]:
                if sum(map(len, chosen)) + len(paragraph) < high and paragraph not in chosen:
                    chosen.append(paragraph)
            index, offset = index + 1, 0
        text = "\n\n".join(chosen)
        counts = collections.Counter(re.findall(r"[a-z]{5,}", text.lower()))
        total = len(runs)
        ranked = sorted(
            counts, key=lambda w: -counts[w] * math.log(total / self.corpus.document_frequency[w])
        )
        first, second, third, fourth = (*ranked, "objects", "values", "names", "errors")[:4]
        what = pick(
            (
                f"how {first} and {second} work together",
                f"what {first} means",
                f"what {first} is and why {second} matters",
                f"how {first} works",
                f"the idea behind {first}",
                f"why one would use {first} with {second}",
            )
        )
        whom = pick(("to a new colleague", "to a new colleague", f"to a colleague new to {third}"))
        more = pick(
            (
                "",
                "",
                f" Say what {third} and {fourth} have to do with it.",
                f" Start from {second}, and come to {third} from there.",
                f" Speak of {second}, {third} and {fourth}, and say when it does not work.",
            )
        )
        return f"Explain {what} {whom}, in plain prose without lists or code.{more}", text

    def chat(self, kind: str, low: int, high: int) -> tuple[str, str]:
        """A prompt in the chat template up to the answer, and the answer with its end."""
        question, answer = {"edit": self.edit, "code": self.code, "prose": self.prose}[kind](
            low, high
        )
        messages = [("user", question)]
        if self.random.random() < 0.3:
            messages.insert(0, ("system", self.random.choice(SYSTEM_PROMPTS)))
        return render(messages) + "<|im_start|>assistant\n", answer + "<|im_end|>\n"
