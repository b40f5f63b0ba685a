"""How much memory the weights of a checkpoint take; only sizes are read, no tensor data."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from vllm_frontier.checkpoint.folder import read_object

_INDEX = "model.safetensors.index.json"
_HEADER_BYTES_MAX = 100_000_000  # the limit of the format itself
# What the format calls them, and bits of one element.
_BITS: Mapping[str, int] = {
    "F64": 64,
    "I64": 64,
    "U64": 64,
    "F32": 32,
    "I32": 32,
    "U32": 32,
    "F16": 16,
    "BF16": 16,
    "I16": 16,
    "U16": 16,
    "BOOL": 8,
    "I8": 8,
    "U8": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "F4": 4,
}
_SIDE_MAX, _SIDES_MAX = 2**40, 16  # a damaged header may say anything
_FLOATS = ("F64", "F32", "F16", "BF16")

# Layers of the text model; a vision tower counts its own from 0.
_LAYER = re.compile(r"^(?:model\.)?(?:language_model\.)?(?:model\.)?layers\.(\d+)\.")
_HEAD_PART = re.compile(r"(?:^|\.)(?:mtp|nextn)(?:_[a-z]+)*(?:\.|$)")
# A head reads and writes the words of its model: vLLM lets it share what the file holds twice.
_SHARED = re.compile(r"(?:embed_tokens|shared_head\.head|lm_head)\.weight$")


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes of a checkpoint's weights in memory.

    Attributes:
        base: without the speculative head.
        head: of the head that the checkpoint brings along; 0 where it has none.
        shared: of copies of the model's embeddings that a head may share with it instead.
        exact: whether every tensor was counted, or only files.
    """

    base: float
    head: float
    shared: float
    exact: bool


def read_weights(
    folder: Path, *, layers: int | None, float_bytes: float | None, tied: bool
) -> Weights | None:
    """The weights of a folder; None where there are none that can be read.

    Args:
        folder: the model's.
        layers: of the model; those beyond them are its speculative head.
        float_bytes: to how many bytes an element of floating point is converted when it is
            loaded; None: it stays as it is.
        tied: whether the words are written with the embedding that reads them.
    """
    try:
        names = _tensor_files(folder)
        if names and all((folder / name).is_file() for name in names):
            return _count(folder, names, layers, float_bytes, tied)
        size = _size_of_index(folder) or _size_of_files(folder)
    except (OSError, ValueError, RecursionError, struct.error):
        return None
    return None if size is None else Weights(size, 0.0, 0.0, exact=False)


def _tensor_files(folder: Path) -> list[str]:
    """The files that vLLM loads: those of the index, else all but a second copy."""
    index = read_object(folder / _INDEX)
    names = index.get("weight_map") if index else None
    if isinstance(names, dict) and all(isinstance(name, str) for name in names.values()):
        return sorted(set(names.values()))
    found = sorted(path.name for path in folder.glob("*.safetensors"))
    return [name for name in found if not name.startswith("consolidated")] or found


def _count(
    folder: Path, names: list[str], layers: int | None, float_bytes: float | None, tied: bool
) -> Weights:
    base = head = shared = 0.0
    for name in names:
        for tensor, size in _tensors(folder / name, float_bytes):
            if not _is_head(tensor, layers):
                base += 0.0 if tied and tensor.endswith("lm_head.weight") else size
            elif _SHARED.search(tensor):
                shared += size
            else:
                head += size
    return Weights(base, head, shared, exact=True)


def _tensors(path: Path, float_bytes: float | None) -> Iterator[tuple[str, float]]:
    """The tensors of a file and their bytes in memory, from its header.

    Raises:
        ValueError: the header is damaged.
    """
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if not 2 <= length <= min(_HEADER_BYTES_MAX, path.stat().st_size):
            raise ValueError(f"{path} has a header of {length} bytes")
        header = json.loads(file.read(length))
    if not isinstance(header, dict):
        raise ValueError(f"the header of {path} is no object")
    for name, entry in header.items():
        if name != "__metadata__":
            yield name, _bytes(entry, float_bytes)


def _bytes(entry: Any, float_bytes: float | None) -> float:
    match entry:
        case {"dtype": str(kind), "shape": list(shape)} if (
            all(isinstance(side, int) and 0 <= side < _SIDE_MAX for side in shape)
            and len(shape) <= _SIDES_MAX
        ):
            if kind in _FLOATS and float_bytes is not None:
                return float(prod(shape) * float_bytes)
            return prod(shape) * _BITS.get(kind, 16) / 8
    raise ValueError("a tensor without a shape")


def _is_head(tensor: str, layers: int | None) -> bool:
    if _HEAD_PART.search(tensor):
        return True
    found = _LAYER.match(tensor)
    return found is not None and layers is not None and int(found[1]) >= layers


def _size_of_index(folder: Path) -> float | None:
    index = read_object(folder / _INDEX)
    metadata = index.get("metadata") if index else None
    size = metadata.get("total_size") if isinstance(metadata, dict) else None
    return float(size) if isinstance(size, int | float) and 0 < size < 2**50 else None


def _size_of_files(folder: Path) -> float | None:
    files = list(folder.glob("pytorch_model*.bin"))
    size = sum(path.stat().st_size for path in files if path.is_file())
    return float(size) or None
