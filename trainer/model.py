"""A Llama-style decoder in plain torch, sharded by FSDP2.

Weights are drawn per parameter from (seed, name), so every world size starts from the same bits.
"""

from __future__ import annotations

import hashlib

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.utils.checkpoint import checkpoint

from trainer.config import LoopConfig, ModelConfig


def rotary_table(length: int, head_dim: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """`(cos, sin)`, each of shape (length, head_dim / 2), in fp32 (RoFormer, arXiv:2104.09864, eq. 15)."""
    frequencies = theta ** (-torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim)
    angles = torch.outer(torch.arange(length, device=device, dtype=torch.float32), frequencies)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs (first half, second half) of x (batch, heads, length, head_dim)."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1).type_as(x)


class Attention(nn.Module):
    """Causal self-attention with grouped key and value heads."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = config.num_heads, config.num_kv_heads
        self.head_dim = config.dim // config.num_heads
        kv_dim = self.num_kv_heads * self.head_dim
        self.wq = nn.Linear(config.dim, config.dim, bias=False)
        self.wk = nn.Linear(config.dim, kv_dim, bias=False)
        self.wv = nn.Linear(config.dim, kv_dim, bias=False)
        self.wo = nn.Linear(config.dim, config.dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """(batch, length, dim) to the same."""
        batch, length, dim = x.shape
        q = self.wq(x).view(batch, length, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.wk(x).view(batch, length, self.num_kv_heads, self.head_dim).transpose(1, 2)
        v = self.wv(x).view(batch, length, self.num_kv_heads, self.head_dim).transpose(1, 2)
        grouped = self.num_kv_heads != self.num_heads
        y = F.scaled_dot_product_attention(
            rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True, enable_gqa=grouped
        )
        return self.wo(y.transpose(1, 2).reshape(batch, length, dim))


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.w1 = nn.Linear(config.dim, config.ffn_dim, bias=False)
        self.w2 = nn.Linear(config.ffn_dim, config.dim, bias=False)
        self.w3 = nn.Linear(config.dim, config.ffn_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, dim) to the same."""
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    """Attention and feed-forward, each behind its norm and beside its residual."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.attention = Attention(config)
        self.ffn_norm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.ffn = FeedForward(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """(batch, length, dim) to the same."""
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.ffn(self.ffn_norm(x))


class Decoder(nn.Module):
    """Tokens (batch, length) to logits (batch, length, vocab_size)."""

    def __init__(self, config: ModelConfig, *, activation_checkpointing: bool = False) -> None:
        super().__init__()
        self.config = config
        self.activation_checkpointing = activation_checkpointing
        self.embedding = nn.Embedding(config.vocab_size, config.dim)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.output = None if config.tie_embeddings else nn.Linear(config.dim, config.vocab_size, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits in the compute precision."""
        x = self.embedding(tokens)
        cos, sin = rotary_table(
            tokens.shape[1], self.config.dim // self.config.num_heads, self.config.rope_theta, tokens.device
        )
        for block in self.blocks:
            if self.activation_checkpointing:
                x = checkpoint(block, x, cos, sin, use_reentrant=False)
            else:
                x = block(x, cos, sin)
        x = self.norm(x)
        # Tied: the root's parameters are gathered while it runs, so its embedding is the whole matrix here.
        return F.linear(x, self.embedding.weight) if self.output is None else self.output(x)


def build_model(config: ModelConfig, loop: LoopConfig, mesh: DeviceMesh | None, device: torch.device) -> Decoder:
    """The initialised model, sharded over `mesh` (None: whole, for tests and single processes)."""
    with torch.device("meta"):
        model = Decoder(config, activation_checkpointing=loop.activation_checkpointing)
    if loop.compile:
        for block in model.blocks:
            block.compile()
    if mesh is not None:
        policy = mixed_precision(loop, device)
        for block in model.blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
    model.to_empty(device=device)
    initialise(model, loop.seed)
    return model


def mixed_precision(loop: LoopConfig, device: torch.device) -> MixedPrecisionPolicy:
    """bf16 compute with fp32 reduction on GPU; everything fp32 on CPU, unless set otherwise."""
    bf16 = loop.precision == "bf16" or (loop.precision == "auto" and device.type == "cuda")
    return (
        MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        if bf16
        else MixedPrecisionPolicy()
    )


@torch.no_grad()
def initialise(model: nn.Module, seed: int) -> None:
    """Norms to one, matrices from N(0, 0.02), residual outputs scaled by depth (GPT-2, section 2.3)."""
    depth = sum(isinstance(module, Block) for module in model.modules())
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            _fill(parameter, torch.ones(parameter.shape, device=parameter.device))
            continue
        std = 0.02 / (2 * depth) ** 0.5 if name.endswith(("wo.weight", "w2.weight")) else 0.02
        digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
        generator = torch.Generator(parameter.device).manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        whole = torch.empty(parameter.shape, device=parameter.device)
        _fill(parameter, whole.normal_(0.0, std, generator=generator))


def _fill(parameter: Tensor, whole: Tensor) -> None:
    """Copy this rank's part of `whole` into a parameter that may be sharded along its first dimension."""
    if not isinstance(parameter, DTensor):
        parameter.copy_(whole)
        return
    shape, offset = compute_local_shape_and_global_offset(
        parameter.shape, parameter.device_mesh, parameter.placements
    )
    window = tuple(slice(start, start + size) for start, size in zip(offset, shape, strict=True))
    parameter.to_local().copy_(whole[window])


def params_sha256(model: nn.Module) -> str:
    """Hash over sorted names, dtype, shape and the bytes of every whole tensor. Collective on a sharded model."""
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        data = whole.detach().contiguous().cpu()
        digest.update(f"{name} {data.dtype} {tuple(data.shape)}\n".encode())
        digest.update(data.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def flops_per_token(config: ModelConfig, sequence_length: int) -> float:
    """Forward and backward, 6 a parameter plus attention (PaLM, arXiv:2204.02311, appendix B)."""
    embedding = 0 if config.tie_embeddings else config.vocab_size * config.dim
    return 6.0 * (config.num_params - embedding) + 12.0 * config.num_layers * config.dim * sequence_length
