"""The training that the benchmarks checkpoint: a GPT-like model under AdamW, sized by its state.

Synthetic tokens, real mathematics. It must stay plain PyTorch: nothing here knows who is saving it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY = 256  # bytes: keeps the state in the blocks, where a large model has it


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.before_attention(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.before_mlp(x))


class Gpt(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, VOCABULARY))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        return self.head(self.blocks(x))


@dataclass(frozen=True)
class Training:
    """One model, its optimizer and its loss; `state_bytes` is what a checkpoint must hold."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[], Tensor]

    @property
    def state_bytes(self) -> int:
        return sum(t.nbytes for t in tensors_of(self.state()).values())

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def forward_backward(self) -> Tensor:
        loss = self.loss()
        loss.backward()
        return loss.detach()


def gpt_training(quick: bool = False, batch: int = 2, length: int = 128, layers: int = 12) -> Training:
    """85 million parameters, 1.0 GB with AdamW's two moments; or a tenth of that for a quick look."""
    torch.manual_seed(0)
    layers, width, heads = (3, 512, 8) if quick else (layers, 768, 12)
    model = Gpt(layers, width, heads, length)
    ids = torch.randint(VOCABULARY, (batch, length + 1))

    def loss() -> Tensor:
        return functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    return _started(model, loss)


def many_small_tensors(count: int) -> Training:
    """About `count` tensors of a few bytes each: every parameter brings two moments and a step."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(count // 8)))
    x = torch.randn(4, 8)
    return _started(model, lambda: model(x).square().mean())


def _started(model: nn.Module, loss: Callable[[], Tensor]) -> Training:
    # fused is the fastest AdamW on a CPU: a slow optimizer would hide what saving costs.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    training = Training(model, optimizer, loss)
    training.forward_backward()
    optimizer.step()  # a real first step: the moments exist from here on
    optimizer.zero_grad()
    return training


def tensors_of(tree: Any, path: str = "") -> dict[str, Tensor]:
    """Every tensor of a nested state, by its dotted path."""
    if isinstance(tree, Tensor):
        return {path: tree}
    if isinstance(tree, dict):
        children = tree.items()
    elif isinstance(tree, (list, tuple)):
        children = enumerate(tree)
    else:
        return {}
    found: dict[str, Tensor] = {}
    for key, child in children:
        found |= tensors_of(child, f"{path}.{key}" if path else str(key))
    return found
