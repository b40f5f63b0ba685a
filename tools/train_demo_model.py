"""Train the demo model: a tiny Qwen2 decoder with a multi-token-prediction (MTP) head.

    python tools/train_demo_model.py --out outputs/demo-mtp

Corpus: some modules and the reference topics of the running Python's standard library (see
``demo_corpus.py``), plain and as chat samples. A step takes 1.4 seconds on two idle cores. The
shipped weights come from two runs with the seeds 20 and 21, 680 steps; the model's README.md says
which, how long they took, and what was measured.

Two stages. *Main*: next-token loss, and the head unrolled four steps towards the target's own
distribution at each place, since what counts while serving is agreement with the target and not
with the text. *Polish*: the model continues prompts greedily and is taught on what it wrote. A
token that repeats a stretch already written is made less likely (sequence-level unlikelihood,
Welleck et al. 2020), because tiny models otherwise fall into loops; and the head learns on
exactly the kind of text that it will draft.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import demo_corpus
import torch
import torch.distributed as dist
from demo_net import Net, Shape
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.multiprocessing.spawn import start_processes
from torch.nn import functional

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' "
    "+ (message['content'] if message['content'] is string else "
    "message['content'] | map(attribute='text') | join('')) + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
MAX_POSITIONS = 32_768
DRAFT_STEPS = 4
DRAFT_WEIGHTS = (0.35, 0.25, 0.2, 0.15)
# Rows of each batch, tokens of each row, starts of drafts in each row.
SHORT = (16, 512, 64)
LONG = (6, 1536, 128)
REPEATED = 10


def train_tokenizer(samples: demo_corpus.Samples, vocab: int) -> Tokenizer:
    """Train a byte-level BPE on the mixture that the model sees."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [samples.plain() for _ in range(700)]
    for _ in range(1400):
        texts.append(samples.code(800, 2500)[1])
        texts += samples.prose(600, 1500)
        texts.append(samples.edit(300, 900)[0])
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """Return the number of a token that must exist."""
    number = tokenizer.token_to_id(token)
    if number is None:
        raise ValueError(f"the tokenizer has no {token}")
    return int(number)


class Batches:
    """Random batches of packed rows; the first sample of a row starts at position 0."""

    def __init__(self, samples: demo_corpus.Samples, tokenizer: Tokenizer) -> None:
        self.samples, self.tokenizer = samples, tokenizer
        self.random = random.Random(samples.random.random())
        self.end = token_id(tokenizer, "<|endoftext|>")

    def _row(self, length: int, copied: bool) -> list[int]:
        if copied:
            # Noise said twice: the quickest lesson in copying, which edits live from. Never more
            # than twice, or the lesson would be to go in circles.
            noise: list[int] = []
            while len(noise) < length:
                size = self.random.randrange(8, self.random.choice((16, 64, 250)))
                noise += 2 * [self.random.randrange(3, 2048) for _ in range(size)]
            return noise[:length]
        row: list[int] = []
        wide = length > 1000
        while len(row) < length:
            kind = self.random.choices(
                ("plain", "edit", "code", "prose"), (0, 60, 20, 20) if wide else (5, 33, 35, 27)
            )[0]
            if kind == "plain":
                text = self.samples.plain()
            else:
                low, high = {
                    ("edit", False): (200, 800),
                    ("code", False): (800, 2000),
                    ("prose", False): (900, 1800),
                    ("edit", True): (900, 3800),
                    ("code", True): (1200, 3600),
                    ("prose", True): (1200, 3600),
                }[kind, wide]
                text = "".join(self.samples.chat(kind, low, high))
            row += [*self.tokenizer.encode(text).ids, self.end]
        return row[:length]

    def next(self, rows: int, length: int, copied: int) -> Tensor:
        """Return ``[rows, length]`` tokens, of which ``copied`` rows are repeated noise."""
        return torch.tensor([self._row(length, n < copied) for n in range(rows)])

    def prompts(self, kind: str, rows: int, longest: int) -> Tensor:
        """Return prompts of one kind and of equal length, up to where the answer begins."""
        by_length: collections.defaultdict[int, list[list[int]]] = collections.defaultdict(list)
        while True:
            ids = self.tokenizer.encode(self.samples.chat(kind, 900, 2500)[0]).ids
            if len(ids) < longest:
                by_length[len(ids)].append(ids)
                if len(by_length[len(ids)]) == rows:
                    return torch.tensor(by_length[len(ids)])


def draft_loss(net: Net, tokens: Tensor, states: Tensor, logits: Tensor, at: Tensor) -> Tensor:
    """Cross-entropy of the unrolled head against the target's distribution.

    Args:
        net: The model.
        tokens: ``[batch, time]``.
        states: The target's states at the same places.
        logits: The target's logits at the same places; they are labels, not trained by this.
        at: Places to draft from, each at most ``time - DRAFT_STEPS - 1``.

    Returns:
        The weighted sum over the steps.
    """
    keep = tokens.shape[1] - DRAFT_STEPS
    loss = torch.zeros(())
    drafts = net.draft_states(tokens, states[:, :keep], at, DRAFT_STEPS)
    for step, (draft, weight) in enumerate(zip(drafts, DRAFT_WEIGHTS, strict=True), start=1):
        label = logits[:, at + step].detach().float().softmax(-1)
        loss = loss + weight * functional.cross_entropy(
            net.lm_head(draft).float().flatten(0, 1), label.flatten(0, 1)
        )
    return loss


def repeats(row: list[int], prompt: int) -> list[int]:
    """Places whose token completes a stretch that the answer (or the prompt) already used up.

    A stretch may appear once in the answer, or as often as the prompt has it: copying from the
    prompt is wanted, saying the same thing again is not.
    """
    seen: collections.Counter[tuple[int, ...]] = collections.Counter()
    allowed: collections.Counter[tuple[int, ...]] = collections.Counter()
    bad: list[int] = []
    for place in range(REPEATED, len(row) + 1):
        stretch = tuple(row[place - REPEATED : place])
        if place <= prompt:
            allowed[stretch] += 1
        elif place - REPEATED >= prompt:
            seen[stretch] += 1
            if seen[stretch] > max(1, allowed[stretch]):
                bad.append(place - 1)
    return bad


def polish_loss(net: Net, tokens: Tensor, prompt: int, stop: int) -> tuple[Tensor, float]:
    """Loss on the model's own greedy text ``[batch, time]``.

    Args:
        net: The model.
        tokens: Prompts and what the model wrote.
        prompt: Length of the prompts.
        stop: The token that ends an answer; nothing after it counts.

    Returns:
        The loss, and the share of written tokens that repeat.
    """
    batch, time = tokens.shape
    weight = torch.zeros(batch, time - 1)
    for index, row in enumerate(tokens.tolist()):
        length = row.index(stop, prompt) if stop in row[prompt:] else time
        for place in repeats(row[:length], prompt):
            weight[index, place - 1] = 1.0
    states = net.states(tokens)
    logits = net.lm_head(net.model.norm(states)).float()
    chosen = logits[:, :-1].softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
    against = -(torch.log1p(-chosen.clamp(max=0.999)) * weight).sum() / (batch * 32)
    room = torch.arange(prompt, time - DRAFT_STEPS - 1)
    at = room[torch.randperm(len(room))[:96].sort().values]
    return against + draft_loss(net, tokens, states, logits, at), weight.sum().item() / (
        batch * (time - prompt)
    )


def optimisers(net: Net, rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the blocks, AdamW for everything else."""
    inner = [p for n, p in net.named_parameters() if p.ndim == 2 and "layers" in n]
    ids = {id(p) for p in inner}
    outer = [p for p in net.parameters() if id(p) not in ids]
    return [
        torch.optim.Muon(inner, lr=rate, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(outer, lr=rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def average_gradients(net: Net, workers: int) -> None:
    """Give every worker the mean of all workers' gradients."""
    if workers == 1:
        return
    gradients = [p.grad for p in net.parameters() if p.grad is not None]
    flat = torch.cat([g.flatten() for g in gradients])
    dist.all_reduce(flat)
    flat /= workers
    start = 0
    for gradient in gradients:
        end = start + gradient.numel()
        gradient.copy_(flat[start:end].view_as(gradient))
        start = end


def set_rate(optimizers: list[torch.optim.Optimizer], rate: float) -> None:
    """Give every parameter group the learning rate of this step."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate


def train(net: Net, batches: Batches, args: argparse.Namespace, *, leads: bool) -> None:
    """Run both stages; writes the checkpoint now and then and at the end."""
    optimizers = optimisers(net, args.rate)
    stop = token_id(batches.tokenizer, "<|im_end|>")
    began = time.monotonic()
    total = args.steps + args.polish
    sums: collections.Counter[str] = collections.Counter()
    for step in range(total):
        polishing = step >= args.steps
        if polishing:
            rate = args.polish_rate * (1 - (step - args.steps) / args.polish)
        else:
            left = (args.steps - step) / args.steps
            floor = args.polish_rate if args.polish else 0.0
            rate = floor + (args.rate - floor) * min((step + 1) / args.warm, left / args.decay, 1.0)
        set_rate(optimizers, rate)
        long = (args.init or step > args.steps * 0.2) and step % 5 in (1, 3)
        rows, length, starts = LONG if long else SHORT
        rows //= args.workers
        tokens = batches.next(
            rows, length, args.noise // args.workers if step < args.steps * 0.3 and not long else 0
        )
        at = torch.randperm(length - DRAFT_STEPS - 1)[:starts].sort().values
        with torch.autocast("cpu", torch.bfloat16):
            states = net.states(tokens)
            logits = net.lm_head(net.model.norm(states))
            text = functional.cross_entropy(
                logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten()
            )
            head = draft_loss(net, tokens, states, logits, at)
        torch.autograd.backward(text + head)
        sums.update(
            {
                "n": 1,
                "long" if long else "short": text.item(),
                "head": head.item(),
                "nl": int(long),
                "ns": int(not long),
            }
        )
        if polishing:
            kind = ("code", "prose")[step % 2]
            # As large as a short batch, for which the blocks are compiled already.
            prompts = batches.prompts(kind, SHORT[0] // args.workers, 220)
            own = net.greedy(prompts, SHORT[1] - prompts.shape[1])
            with torch.autocast("cpu", torch.bfloat16):
                loss, share = polish_loss(net, own, prompts.shape[1], stop)
            torch.autograd.backward(loss)
            sums.update({kind: share, f"n{kind}": 1})
        average_gradients(net, args.workers)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if leads and step % (5 if polishing else 20) == 4:
            named = {
                k: sums[k] / max(1, sums[n])
                for k, n in (
                    ("short", "ns"),
                    ("long", "nl"),
                    ("head", "n"),
                    ("code", "ncode"),
                    ("prose", "nprose"),
                )
            }
            print(
                step + 1,
                f"{time.monotonic() - began:.0f}s",
                {k: round(v, 3) for k, v in named.items()},
                flush=True,
            )
            sums.clear()
        if leads and (step % 60 == 59 or step in (args.steps - 1, total - 1)):
            write(net, batches.tokenizer, args.out)


def write(net: Net, tokenizer: Tokenizer, out: Path) -> None:
    """Write weights (bfloat16), configuration and tokenizer as vLLM loads them."""
    out.mkdir(parents=True, exist_ok=True)
    shape = net.shape
    weights = {k: v.detach().to(torch.bfloat16).contiguous() for k, v in net.state_dict().items()}
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save(str(out / "tokenizer.json"))
    ids = {name: tokenizer.token_to_id(name) for name in SPECIAL}
    config = {
        "architectures": ["MiMoForCausalLM"],
        "model_type": "qwen2",
        "num_nextn_predict_layers": 1,
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "hidden_act": "silu",
        "rms_norm_eps": shape.eps,
        "rope_theta": shape.rope_theta,
        "max_position_embeddings": MAX_POSITIONS,
        "tie_word_embeddings": False,
        "attention_dropout": 0.0,
        "use_cache": True,
        "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|im_end|>"],
        "torch_dtype": "bfloat16",
    }
    generation = {
        "do_sample": False,
        "eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]],
        "pad_token_id": ids["<|endoftext|>"],
    }
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": MAX_POSITIONS,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "additional_special_tokens": ["<|im_start|>"],
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    for name, content in (
        ("config.json", config),
        ("generation_config.json", generation),
        ("tokenizer_config.json", tokenizer_config),
    ):
        (out / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--steps", type=int, default=1200, help="steps of the main stage")
    parser.add_argument("--polish", type=int, default=120, help="steps of the second stage")
    parser.add_argument("--seed", type=int, default=20, help="seed of data and weights")
    parser.add_argument("--rate", type=float, default=3e-3, help="highest learning rate")
    parser.add_argument("--polish-rate", type=float, default=4e-4, help="rate of the second stage")
    parser.add_argument("--noise", type=int, default=4, help="noise rows in each early batch")
    parser.add_argument("--warm", type=int, default=100, help="steps until the highest rate")
    parser.add_argument("--decay", type=float, default=0.7, help="share of steps with falling rate")
    parser.add_argument("--workers", type=int, default=2, help="processes of one thread each")
    parser.add_argument("--init", type=Path, help="checkpoint folder to go on from")
    args = parser.parse_args()
    args.rendezvous = Path(tempfile.mkdtemp()) / "rendezvous"
    start_processes(work, (args,), nprocs=args.workers)  # type: ignore[no-untyped-call]


def work(rank: int, args: argparse.Namespace) -> None:
    """Train in one of the processes; all hold the same weights and read different samples.

    One thread in each of two processes waits once a step. Two threads in one process wait for
    each other in every operation, which is far slower where something else uses the cores.
    """
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    if args.workers > 1:
        dist.init_process_group(
            "gloo", f"file://{args.rendezvous}", rank=rank, world_size=args.workers
        )
    corpus = demo_corpus.load()
    shape = Shape()
    net = Net(shape, LONG[1] + DRAFT_STEPS)
    if args.init:
        tokenizer = Tokenizer.from_file(str(args.init / "tokenizer.json"))
        net.load_state_dict(
            {k: v.float() for k, v in load_file(args.init / "model.safetensors").items()}
        )
    else:
        tokenizer = train_tokenizer(demo_corpus.Samples(corpus, args.seed), shape.vocab)
    if rank == 0:
        print(asdict(shape), sum(p.numel() for p in net.parameters()), "parameters", flush=True)
    torch.manual_seed(args.seed * 1000 + rank)
    for block in net.model.layers:
        # One block at a time: compiling the whole network takes minutes for the same speed.
        block.compile(dynamic=False)
    samples = demo_corpus.Samples(corpus, args.seed * 1000 + rank)
    train(net, Batches(samples, tokenizer), args, leads=rank == 0)


if __name__ == "__main__":
    main()
