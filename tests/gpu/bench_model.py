"""What the benchmarks train: a decoder under FSDP2 with AdamW on random tokens, and the rank that it runs on."""

from __future__ import annotations

import argparse
import os
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from trainer.checkpoint import ModuleState
from trainer.checkpoint.layout import local
from trainer.state import ShardAdamW


class Block(nn.Module):
    """Attention and SwiGLU."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.up, self.gate = nn.Linear(dim, 4 * dim, bias=False), nn.Linear(dim, 4 * dim, bias=False)
        self.down = nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, dim = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, dim))
        y = self.norm2(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """Embedding, blocks, output."""

    def __init__(self, vocab: int, dim: int, layers: int, heads: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(dim), nn.Linear(dim, vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Rank:
    """One process: its number, device, store and default group."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.number, self.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        cuda = torch.cuda.is_available() and not options.cpu
        self.device = torch.device("cuda", self.number) if cuda else torch.device("cpu")
        if cuda:
            torch.cuda.set_device(self.device)
        else:
            torch.set_num_threads(1)
        self.store = dist.TCPStore(
            "127.0.0.1", int(os.environ["MASTER_PORT"]), None, False, timedelta(seconds=120)
        )
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if cuda else "gloo",
            store=dist.PrefixStore("default", self.store),
            rank=self.number,
            world_size=self.world_size,
        )

    def settle(self) -> None:
        """Wait until device and ranks have done what they were given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        dist.barrier()

    def agree(self, value: float) -> float:
        """Rank 0's value."""
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]

    def device_bytes(self) -> int:
        """Allocated on the device."""
        return torch.cuda.memory_allocated() if self.device.type == "cuda" else 0


class Clock:
    """Times of steps: events on the GPU, perf_counter on the CPU."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._marks: list[Any] = []

    def mark(self) -> None:
        """A step ends, and the next begins."""
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def durations_s(self) -> list[float]:
        """Between one mark and the next."""
        if not self._cuda:
            return [b - a for a, b in zip(self._marks, self._marks[1:], strict=False)]
        torch.cuda.synchronize()
        return [a.elapsed_time(b) / 1e3 for a, b in zip(self._marks, self._marks[1:], strict=False)]


class Training:
    """A model that trains on random tokens; arms share it."""

    def __init__(self, options: argparse.Namespace, rank: Rank) -> None:
        device = rank.device
        torch.manual_seed(0)
        with torch.device(device):
            self.model = Decoder(options.vocab, options.dim, options.layers, options.heads)
        mesh = init_device_mesh(device.type, (rank.world_size,))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        extra = {"mp_policy": policy} if device.type == "cuda" else {}
        for block in self.model.blocks:
            fully_shard(block, mesh=mesh, **extra)
        fully_shard(self.model, mesh=mesh, **extra)
        self.optimizer = ShardAdamW(self.model.parameters(), lr=1e-4)
        for parameter in self.model.parameters():
            self.optimizer.state[parameter] = {
                "step": torch.zeros((), device=device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
        self.step_number = 0
        self.state = ModuleState(self.model, self.optimizer, rank.number, lambda: self.step_number, self._set_step)
        self.tokens = torch.randint(options.vocab, (options.batch, options.length + 1), device=device)

    def _set_step(self, step: int) -> None:
        self.step_number = step

    def forward_backward(self) -> None:
        """Until gradients are there."""
        logits = self.model(self.tokens[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1).float(), self.tokens[:, 1:].flatten()).backward()

    def update(self) -> None:
        """The optimizer's part of a step."""
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def fingerprint(self) -> Tensor:
        """One integer for each device tensor, computed where it lives."""
        return torch.stack([sum_bits(local(t)) for t in self.state.device_tensors().values()])

    def nbytes(self) -> int:
        """Of this rank's device tensors."""
        return sum(local(t).nbytes for t in self.state.device_tensors().values())


def sum_bits(tensor: Tensor) -> Tensor:
    """The sum of a tensor's bits as integers of 64 bits, or of 32 where they do not come out even."""
    flat = tensor.detach().reshape(-1)
    return flat.view(torch.int32 if flat.nbytes % 8 else torch.int64).sum(dtype=torch.int64)
