"""Build a checkpoint whose speculative acceptance is known before it is served.

    python tools/build_constructed_model.py --out outputs/constructed \
        --agreement high=0.98 --agreement middle=0.6 --agreement low=0.16

Attention and MLP of every block add nothing, so the target is a fixed map from a token to the
next one, and the head's draft depends on one token alone. Each token carries two codes of 64
signs: its own, which the output matrix looks up to find the successor, and one that only the head
reads. Where both are equal the head drafts the right successor; elsewhere it holds the code of
another token and the draft is wrong. The tokens are divided into groups that the map never
leaves, each with its own share of agreeing tokens. What must be measured follows by arithmetic.

The text that comes out is meaningless. The chat template is the bare text of the last message,
because the last token of a prompt chooses the group.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import Tokenizer

DEMO = Path(__file__).resolve().parents[1] / "src" / "vllm_frontier" / "models" / "demo-mtp"
CODE = 64
HIDDEN = 2 * CODE
INTERMEDIATE = 256
HEADS, KV_HEADS = 4, 2
SPECIAL = 3
DEFAULT_AGREEMENT = {"high": 0.98, "middle": 0.60, "low": 0.16}


@dataclass(frozen=True)
class Group:
    """Tokens that only lead to each other.

    Attributes:
        asked: Agreement asked for.
        agreement: Share of the group's tokens at which head and target agree, counted from the
            weights that were written.
        tokens: The group's token ids, in the order of the map (the last leads to the first).
        prompts: Texts that start in this group.
        prompt_ids: The same prompts as token ids.
    """

    asked: float
    agreement: float
    tokens: tuple[int, ...]
    prompts: tuple[str, ...]
    prompt_ids: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Constructed:
    """A built checkpoint and the truth about it.

    Attributes:
        path: Folder of the checkpoint.
        groups: The groups by name.
        successor: For each token id the token that the target writes after it.
        draft: For each token id the token that the head drafts after it.
    """

    path: Path
    groups: dict[str, Group]
    successor: tuple[int, ...]
    draft: tuple[int, ...]

    def continuation(self, last: int, count: int) -> list[int]:
        """Return the ``count`` tokens that greedy decoding writes after token ``last``."""
        written = []
        for _ in range(count):
            last = self.successor[last]
            written.append(last)
        return written

    def expected_acceptance(self, last: int, count: int, depth: int) -> tuple[float, ...]:
        """Walk through one request as the engine does and count.

        Args:
            last: Last token of the prompt.
            count: Tokens to generate.
            depth: Tokens drafted at a time, at least 1.

        Returns:
            For each position from 1 the share of drafts whose first tokens up to there were all
            accepted. A request that ends in the middle of a draft can differ by that one draft.
        """
        token, written, drafts = self.successor[last], 1, 0
        accepted = [0] * depth
        while written < count:
            drafts += 1
            for position in range(depth):
                right = self.successor[token] == self.draft[token]
                if not right:
                    break
                accepted[position] += 1
                token, written = self.successor[token], written + 1
            token, written = self.successor[token], written + 1
        return tuple(n / max(1, drafts) for n in accepted)


def build(
    out: Path,
    *,
    agreement: Mapping[str, float] = DEFAULT_AGREEMENT,
    seed: int,
    layers: int = 5,
    prompts: int = 4,
    tokenizer: Path = DEMO,
) -> Constructed:
    """Write the checkpoint and return what it must show.

    Args:
        out: Folder to write; made if missing.
        agreement: For each group the share of tokens at which the head agrees, 0 to 1.
        seed: Seed of the codes, the map and the choice of agreeing tokens.
        layers: Blocks of the target. They do nothing but take time, as they would elsewhere.
        prompts: How many prompts to return for each group.
        tokenizer: Checkpoint folder from which to copy the tokenizer.

    Returns:
        The groups with their realised agreement and prompts, and the two maps.

    Raises:
        ValueError: If there is no group or a share is outside 0 to 1.
    """
    if not agreement or not all(0.0 <= share <= 1.0 for share in agreement.values()):
        raise ValueError(f"agreement must map group names to shares from 0 to 1, not {agreement}")
    rng = np.random.default_rng(seed)
    words = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    vocab = words.get_vocab_size()
    plain = [i for i in range(SPECIAL, vocab) if _is_plain(words, i)]
    odd = [i for i in range(vocab) if i not in set(plain)]
    order = [int(i) for i in rng.permutation(plain)]
    size = len(order) // len(agreement)

    own = _codes(rng, vocab)
    for_head = own.copy()
    successor = [0] * vocab
    members: dict[str, list[int]] = {}
    for number, (name, share) in enumerate(agreement.items()):
        tokens = order[number * size : (number + 1) * size]
        members[name] = tokens
        for token, following in zip(tokens, tokens[1:] + tokens[:1], strict=True):
            successor[token] = following
        for place in rng.permutation(size)[: size - round(share * size)]:
            # Half a turn of the ring away: never the right successor.
            for_head[tokens[place]] = own[tokens[(place + size // 2) % size]]
    used = {token for tokens in members.values() for token in tokens}
    entry = order[0]
    for token in (*odd, *(t for t in order if t not in used)):
        successor[token] = entry

    embedding = np.concatenate((own, for_head), axis=1)
    lm_head = np.zeros((vocab, HIDDEN), np.float32)
    for token in sorted(used):
        lm_head[successor[token], :CODE] += own[token]
    # Everything outside the groups enters the first one through a single shared code.
    outside = [t for t in range(vocab) if t not in used]
    entry_code = _codes(rng, 1)[0]
    embedding[outside] = np.concatenate((entry_code, entry_code))
    lm_head[entry, :CODE] += entry_code

    says = embedding @ lm_head.T
    drafts = np.concatenate((embedding[:, CODE:], np.zeros_like(own)), axis=1) @ lm_head.T
    if says.argmax(1).tolist() != successor:
        raise RuntimeError("the codes collide; choose another seed")
    draft = tuple(int(i) for i in drafts.argmax(1))
    groups = {}
    for name, tokens in members.items():
        ids = _prompts(words, tokens, prompts, rng)
        groups[name] = Group(
            asked=agreement[name],
            agreement=sum(draft[t] == successor[t] for t in tokens) / len(tokens),
            tokens=tuple(tokens),
            prompts=tuple(words.decode(list(prompt)) for prompt in ids),
            prompt_ids=ids,
        )
    _write(out, tokenizer, embedding, lm_head, layers, rng=rng)
    return Constructed(path=out, groups=groups, successor=tuple(successor), draft=draft)


def _is_plain(words: Tokenizer, token: int) -> bool:
    """Tell whether a token is printable ASCII on its own and survives a round trip."""
    text = words.decode([token])
    return text.isascii() and text.isprintable() and words.encode(text).ids == [token]


def _codes(rng: np.random.Generator, count: int) -> NDArray[np.float32]:
    """Random sign vectors; exact in every float format, and of norm 1 for RMSNorm."""
    return np.where(rng.random((count, CODE)) < 0.5, -1.0, 1.0).astype(np.float32)


def _prompts(
    words: Tokenizer, tokens: list[int], count: int, rng: np.random.Generator
) -> tuple[tuple[int, ...], ...]:
    """Find texts of the group's tokens that the tokenizer reads back as the same tokens."""
    found: list[tuple[int, ...]] = []
    spaced = [t for t in tokens if words.decode([t]).startswith(" ")] or tokens
    while len(found) < count:
        ids = [int(t) for t in rng.choice(spaced, size=12)]
        # Chat templates and clients may strip the ends, so the first token has no space.
        ids = words.encode(words.decode(ids).strip()).ids
        if ids[-1] in set(tokens):
            found.append(tuple(ids))
    return tuple(found)


def _write(
    out: Path,
    tokenizer: Path,
    embedding: NDArray[np.float32],
    lm_head: NDArray[np.float32],
    layers: int,
    *,
    rng: np.random.Generator,
) -> None:
    """Write weights, configuration and tokenizer files."""
    kv = HIDDEN // HEADS * KV_HEADS

    def block(prefix: str) -> dict[str, NDArray[np.float32]]:
        def noise(rows: int, columns: int) -> NDArray[np.float32]:
            return rng.normal(0.0, columns**-0.5, (rows, columns)).astype(np.float32)

        return {
            f"{prefix}.self_attn.q_proj.weight": noise(HIDDEN, HIDDEN),
            f"{prefix}.self_attn.q_proj.bias": np.zeros(HIDDEN, np.float32),
            f"{prefix}.self_attn.k_proj.weight": noise(kv, HIDDEN),
            f"{prefix}.self_attn.k_proj.bias": np.zeros(kv, np.float32),
            f"{prefix}.self_attn.v_proj.weight": noise(kv, HIDDEN),
            f"{prefix}.self_attn.v_proj.bias": np.zeros(kv, np.float32),
            f"{prefix}.self_attn.o_proj.weight": np.zeros((HIDDEN, HIDDEN), np.float32),
            f"{prefix}.mlp.gate_proj.weight": noise(INTERMEDIATE, HIDDEN),
            f"{prefix}.mlp.up_proj.weight": noise(INTERMEDIATE, HIDDEN),
            f"{prefix}.mlp.down_proj.weight": np.zeros((HIDDEN, INTERMEDIATE), np.float32),
            f"{prefix}.input_layernorm.weight": np.ones(HIDDEN, np.float32),
            f"{prefix}.post_attention_layernorm.weight": np.ones(HIDDEN, np.float32),
        }

    head = "model.mtp_layers.0"
    # The head's input is [state, embedding]; it hands on the embedding's second code only.
    input_proj = np.zeros((HIDDEN, 2 * HIDDEN), np.float32)
    input_proj[:CODE, HIDDEN + CODE :] = np.eye(CODE)
    weights = {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": np.ones(HIDDEN, np.float32),
        "lm_head.weight": lm_head,
        f"{head}.input_proj.weight": input_proj,
        f"{head}.token_layernorm.weight": np.ones(HIDDEN, np.float32),
        f"{head}.hidden_layernorm.weight": np.ones(HIDDEN, np.float32),
        f"{head}.final_layernorm.weight": np.ones(HIDDEN, np.float32),
        **block(head),
    }
    for layer in range(layers):
        weights |= block(f"model.layers.{layer}")
    out.mkdir(parents=True, exist_ok=True)
    half = {name: np.ascontiguousarray(w.astype(np.float16)) for name, w in weights.items()}
    save_file(half, out / "model.safetensors", metadata={"format": "pt"})

    config = json.loads((tokenizer / "config.json").read_text(encoding="utf-8"))
    config |= {
        "vocab_size": len(embedding),
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "torch_dtype": "float16",
    }
    settings = json.loads((tokenizer / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings["chat_template"] = "{{ messages[-1]['content'] }}"
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (out / "tokenizer_config.json").write_text(
        json.dumps(settings, indent=2) + "\n", encoding="utf-8"
    )
    for name in ("tokenizer.json", "generation_config.json"):
        shutil.copyfile(tokenizer / name, out / name)


def main() -> None:
    """Build from the command line and print the truth as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument(
        "--agreement",
        action="append",
        metavar="NAME=SHARE",
        help="a group and its agreement; repeat for more groups",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--layers", type=int, default=5)
    args = parser.parse_args()
    pairs = (item.partition("=") for item in args.agreement or ())
    shares = {name: float(share) for name, _, share in pairs} or DEFAULT_AGREEMENT
    built = build(args.out, agreement=shares, seed=args.seed, layers=args.layers)
    truth = {
        name: {
            "asked": g.asked,
            "agreement": g.agreement,
            "tokens": len(g.tokens),
            "prompts": g.prompts,
        }
        for name, g in built.groups.items()
    }
    print(json.dumps(truth, indent=2))


if __name__ == "__main__":
    main()
