"""The network of the demo model in plain PyTorch: a Qwen2 decoder with an MTP head.

Names of the modules follow the checkpoint that vLLM's ``MiMoForCausalLM`` loads, so that
``state_dict()`` is the checkpoint. Written out here rather than taken from transformers because
the head has to be unrolled during training exactly as vLLM unrolls it while serving.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    """Sizes of the network; the defaults are the shipped model (deep and narrow).

    A target much deeper than its one-block head is what makes speculation pay: a draft step has
    to be cheap beside the pass that verifies it.
    """

    vocab: int = 2048
    hidden: int = 128
    intermediate: int = 320
    layers: int = 14
    heads: int = 4
    kv_heads: int = 2
    rope_theta: float = 100_000.0
    eps: float = 1e-6

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden // self.heads


class RMSNorm(nn.Module):
    """Root-mean-square norm with a learned scale."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        return functional.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def rope_tables(length: int, shape: Shape) -> tuple[Tensor, Tensor]:
    """Return cos and sin of shape ``[length, head_dim]`` (rotate-half layout)."""
    half = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    angles = torch.outer(torch.arange(length, dtype=torch.float32), shape.rope_theta**-half)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions to ``[batch, heads, time, head_dim]``."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(nn.Module):
    """Grouped-query attention with biases on q, k and v, as in Qwen2."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.dim = shape.heads, shape.kv_heads, shape.head_dim
        self.q_proj = nn.Linear(shape.hidden, self.heads * self.dim)
        self.k_proj = nn.Linear(shape.hidden, self.kv_heads * self.dim)
        self.v_proj = nn.Linear(shape.hidden, self.kv_heads * self.dim)
        self.o_proj = nn.Linear(self.heads * self.dim, shape.hidden, bias=False)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return rotated q and k, and v; k and v repeated to the number of query heads."""
        batch, time, _ = x.shape
        q = self.q_proj(x).view(batch, time, self.heads, self.dim).transpose(1, 2)
        k = self.k_proj(x).view(batch, time, self.kv_heads, self.dim).transpose(1, 2)
        v = self.v_proj(x).view(batch, time, self.kv_heads, self.dim).transpose(1, 2)
        groups = self.heads // self.kv_heads
        k = rotate(k, cos, sin).repeat_interleave(groups, dim=1)
        return rotate(q, cos, sin), k, v.repeat_interleave(groups, dim=1)

    def merge(self, out: Tensor) -> Tensor:
        """Join the heads and project back to the hidden size."""
        batch, _, time, _ = out.shape
        joined: Tensor = self.o_proj(out.transpose(1, 2).reshape(batch, time, -1))
        return joined


class MLP(nn.Module):
    """Gated MLP with SiLU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the gated projection."""
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Block(nn.Module):
    """One pre-norm decoder block; ``past`` of one entry per block holds keys and values."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = MLP(shape)
        self.input_layernorm = RMSNorm(shape.hidden, shape.eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden, shape.eps)

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Add the attention output and the MLP to the residual stream."""
        x = x + self.self_attn.merge(attended)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Full causal pass without a cache."""
        q, k, v = self.self_attn.project(self.input_layernorm(x), cos, sin)
        return self.finish(x, functional.scaled_dot_product_attention(q, k, v, is_causal=True))

    def cached(self, x: Tensor, cos: Tensor, sin: Tensor, past: list[Tensor]) -> Tensor:
        """Pass over new positions; ``past`` is empty before the first and grows in place."""
        q, k, v = self.self_attn.project(self.input_layernorm(x), cos, sin)
        if past:
            k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
        causal = not past
        past[:] = [k, v]
        return self.finish(x, functional.scaled_dot_product_attention(q, k, v, is_causal=causal))


class Head(Block):
    """The multi-token-prediction head: joins a hidden state with the next token's embedding."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.token_layernorm = RMSNorm(shape.hidden, shape.eps)
        self.hidden_layernorm = RMSNorm(shape.hidden, shape.eps)
        self.input_proj = nn.Linear(2 * shape.hidden, shape.hidden, bias=False)
        self.final_layernorm = RMSNorm(shape.hidden, shape.eps)

    def join(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        """Project ``[hidden, embedding]`` back to the hidden size."""
        pair = torch.cat((self.hidden_layernorm(hidden), self.token_layernorm(embedded)), dim=-1)
        out: Tensor = self.input_proj(pair)
        return out

    def unroll(
        self, hidden: Tensor, embedded: Tensor, at: Tensor, cos: Tensor, sin: Tensor
    ) -> list[Tensor]:
        """Run the head several steps from chosen positions.

        A draft that starts at position ``t`` sees in step ``n`` what it sees while serving: the
        keys of the first step up to ``t`` (made from the target's hidden states), then its own
        ``n - 1`` keys (made from its own). Attention is therefore written out by hand: one row
        against the keys of step 1, and one column for each later step. Only some positions are
        unrolled, because the head would otherwise cost more training time than the target.

        Args:
            hidden: The target's states before its last norm, ``[batch, time, hidden]``.
            embedded: For each step the embedding of the token that follows,
                ``[steps, batch, time, hidden]``.
            at: Positions from which to draft, ``[starts]``.
            cos: Rotary table, at least ``time + steps`` rows.
            sin: Rotary table, at least ``time + steps`` rows.

        Returns:
            For each step the final states ``[batch, starts, hidden]``, ready for the output
            matrix.
        """
        time = hidden.shape[1]
        scale = self.self_attn.dim**-0.5
        mask = torch.arange(time)[None, :] > at[:, None]
        x = self.join(hidden, embedded[0])
        q, k, v = self.self_attn.project(self.input_layernorm(x), cos[:time], sin[:time])
        x, q = x[:, at], q[:, :, at]
        own: list[tuple[Tensor, Tensor]] = []
        outputs: list[Tensor] = []
        for step in range(embedded.shape[0]):
            if step:
                x = self.join(outputs[-1], embedded[step][:, at])
                table = cos[at + step], sin[at + step]
                q, *pair = self.self_attn.project(self.input_layernorm(x), *table)
                own.append((pair[0], pair[1]))
            square = (q @ k.transpose(-1, -2)).masked_fill(mask, float("-inf"))
            columns = [(q * key).sum(-1, keepdim=True) for key, _ in own]
            weights = (torch.cat((square, *columns), dim=-1) * scale).softmax(-1)
            attended = weights[..., :time] @ v.to(weights.dtype)
            for index, (_, value) in enumerate(own):
                attended = attended + weights[..., time + index, None] * value
            outputs.append(self.final_layernorm(self.finish(x, attended)))
        return outputs


class Decoder(nn.Module):
    """Embedding, blocks, last norm and the head, under the names of the checkpoint."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.hidden, shape.eps)
        self.mtp_layers = nn.ModuleList([Head(shape)])


class Net(nn.Module):
    """The whole model. ``logits = lm_head(norm(states))``; the head shares ``lm_head``."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape, max_length: int) -> None:
        super().__init__()
        self.shape = shape
        self.model = Decoder(shape)
        self.lm_head = nn.Linear(shape.hidden, shape.vocab, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                embedding = isinstance(module, nn.Embedding)
                nn.init.normal_(
                    module.weight, std=0.02 if embedding else module.weight.shape[1] ** -0.5
                )
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        for block in (*self.model.layers, *self.model.mtp_layers):
            # Residual branches start small, or fourteen of them blow the stream up.
            block.self_attn.o_proj.weight.data.mul_((2 * shape.layers) ** -0.5)
            block.mlp.down_proj.weight.data.mul_((2 * shape.layers) ** -0.5)
        cos, sin = rope_tables(max_length, shape)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    @property
    def head(self) -> Head:
        """The speculative head."""
        head = self.model.mtp_layers[0]
        assert isinstance(head, Head)
        return head

    def states(self, tokens: Tensor) -> Tensor:
        """Return the states before the last norm, ``[batch, time, hidden]``."""
        time = tokens.shape[1]
        x: Tensor = self.model.embed_tokens(tokens)
        for block in self.model.layers:
            x = block(x, self.cos[:time], self.sin[:time])
        return x

    def draft_states(self, tokens: Tensor, states: Tensor, at: Tensor, steps: int) -> list[Tensor]:
        """Unroll the head over known text.

        Args:
            tokens: ``[batch, time + steps]``; the first ``time`` are those of ``states``.
            states: Output of :meth:`states`.
            at: Positions from which to draft, ``[starts]``.
            steps: How many steps to unroll. Step ``n`` (from 1) at position ``t`` predicts the
                token at ``t + n + 1``.

        Returns:
            The head's final states ``[batch, starts, hidden]`` of each step.
        """
        time = states.shape[1]
        embedded = torch.stack(
            [self.model.embed_tokens(tokens[:, n : n + time]) for n in range(1, steps + 1)]
        )
        # vLLM blanks the embedding at position 0; only step 1 ever runs there.
        keep = torch.ones(steps, 1, time, 1)
        keep[0, 0, 0, 0] = 0.0
        return self.head.unroll(states, embedded * keep, at, self.cos, self.sin)

    @torch.no_grad()
    def greedy(self, prompt: Tensor, count: int) -> Tensor:
        """Continue equally long prompts ``[batch, time]`` by ``count`` greedy tokens."""
        past: list[list[Tensor]] = [[] for _ in self.model.layers]
        tokens, new, start = prompt, prompt, 0
        for _ in range(count):
            end = start + new.shape[1]
            x = self.model.embed_tokens(new)
            for block, cache in zip(self.model.layers, past, strict=True):
                assert isinstance(block, Block)
                x = block.cached(x, self.cos[start:end], self.sin[start:end], cache)
            new = self.lm_head(self.model.norm(x[:, -1:])).argmax(-1)
            tokens, start = torch.cat((tokens, new), dim=1), end
        return tokens
