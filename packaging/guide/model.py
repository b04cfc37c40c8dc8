"""A Llama in a hundred lines, for training from scratch; llama.cpp runs it as its `llama` architecture."""

import torch
from shape import Config
from torch import Tensor, nn
from torch.nn import functional as F


def rotations(config: Config, length: int) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines of the rotary embedding, each (length, head_dim / 2)."""
    head = config.dim // config.heads
    frequencies = config.rope_base ** (-torch.arange(0, head, 2).float() / head)
    angles = torch.outer(torch.arange(length).float(), frequencies)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate adjacent pairs of x (batch, heads, length, head_dim).

    llama.cpp's `llama` architecture also pairs neighbours, so nothing needs to be permuted on export.
    """
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


# How `Model.begin_as_bag` initializes the first layer: the pairs in each head that fade over about 60 words,
# how strongly they fade, and the value that the first channel has for every word.
FADING = slice(12, 17)
STRENGTH = 4.0
SAME = 4.0


def fading(config: Config, length: int) -> Tensor:
    """Return how much a word counts at each distance in the first layer's initial bag of words: (length,)."""
    return (STRENGTH * rotations(config, length)[0][:, FADING].mean(1)).exp()


class Layer(nn.Module):
    """Attention and a gated feed-forward, each after a norm; the attributes are named after GGUF tensors."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.heads = c.heads
        self.attn_norm = nn.RMSNorm(c.dim, c.norm_eps)
        self.attn_q = nn.Linear(c.dim, c.dim, bias=False)
        self.attn_k = nn.Linear(c.dim, c.dim, bias=False)
        self.attn_v = nn.Linear(c.dim, c.dim, bias=False)
        self.attn_output = nn.Linear(c.dim, c.dim, bias=False)
        self.ffn_norm = nn.RMSNorm(c.dim, c.norm_eps)
        self.ffn_gate = nn.Linear(c.dim, c.hidden, bias=False)
        self.ffn_up = nn.Linear(c.dim, c.hidden, bias=False)
        self.ffn_down = nn.Linear(c.hidden, c.dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, dropout: float) -> Tensor:
        """Return the layer's output, in the same shape as x (batch, length, dim)."""
        batch, length, dim = x.shape
        h = self.attn_norm(x)
        q, k, v = (
            p(h).view(batch, length, self.heads, -1).transpose(1, 2)
            for p in (self.attn_q, self.attn_k, self.attn_v)
        )
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = self.attn_output(h.transpose(1, 2).reshape(batch, length, dim))
        x = x + F.dropout(h, dropout, self.training)
        h = self.ffn_norm(x)
        h = self.ffn_down(F.silu(self.ffn_gate(h)) * self.ffn_up(h))
        return x + F.dropout(h, dropout, self.training)


class Model(nn.Module):
    """Maps token ids to logits at selected positions."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.token_embd = nn.Embedding(config.vocab, config.dim)
        self.blk = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.output_norm = nn.RMSNorm(config.dim, config.norm_eps)
        if not config.tied:
            self.output = nn.Linear(config.dim, config.vocab, bias=False)
            nn.init.normal_(self.output.weight, std=0.02)
        nn.init.normal_(self.token_embd.weight, std=0.02)
        for layer in self.blk:  # start as the identity, which makes training deep models more stable
            nn.init.zeros_(layer.attn_output.weight)
            nn.init.zeros_(layer.ffn_down.weight)

    @torch.no_grad()
    def begin_as_bag(self, embedding: Tensor) -> None:
        """Initialize with an embedding (vocab, dim) and a first layer that adds the mean of all words so far.

        Nearer words weigh more, according to `fading`. To achieve this, the first channel is the same for
        every word: the rotary embedding rotates the queries and keys computed from it according to distance,
        and nothing else affects them.
        """
        self.token_embd.weight.copy_(0.3 * embedding)
        self.token_embd.weight[:, 0] = 0.3 * SAME
        first, head = self.blk[0], self.config.dim // self.config.heads
        pairs = torch.arange(head // 2)[FADING]
        # The value of the first channel after the norm if the other channels are close to one.
        same = SAME / (1 + (SAME**2 - 1) / self.config.dim) ** 0.5
        for weight in (first.attn_q.weight, first.attn_k.weight):
            weight.mul_(0.3)  # the other weights are small, so that attention is even
            weight[:, 0] = 0.0
            for at in range(0, self.config.dim, head):
                weight[at + 2 * pairs, 0] = (STRENGTH / len(pairs)) ** 0.5 * head**0.25 / same
        nn.init.eye_(first.attn_v.weight)[0, 0] = 0.0
        nn.init.eye_(first.attn_output.weight).mul_(8.0)

    def forward(
        self, ids: Tensor, places: Tensor, dropout: float = 0.0, asked: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Map ids (batch, length) and n positions in the flattened batch to logits (n, vocab).

        Only those positions are projected onto the vocabulary. For the m positions in `asked`, also return
        the output of the first half of the layers: (m, dim).
        """
        cos, sin = rotations(self.config, ids.shape[1])
        x = F.dropout(self.token_embd(ids), dropout, self.training)
        understood = None
        for at, layer in enumerate(self.blk, 1):
            x = layer(x, cos, sin, dropout)
            if asked is not None and at == (len(self.blk) + 1) // 2:
                understood = x.flatten(0, 1)[asked]
        out = self.token_embd if self.config.tied else self.output
        return F.linear(self.output_norm(x.flatten(0, 1)[places]), out.weight), understood
