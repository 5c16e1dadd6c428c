"""The training configuration: typed, frozen, all problems at once. Imports neither torch nor NVRx.

It is the `training:` section of an environment file and reaches the container as JSON in STEADFAST_CONFIG.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, model_validator

from trainer.timeouts import Timeouts, derive

Seconds = Annotated[float, Field(gt=0)]


class Settings(BaseModel):
    """Base of every settings class: immutable, unknown keys and `.inf` refused, docstrings become descriptions."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class ModelConfig(Settings):
    """A Llama-style decoder."""

    vocab_size: PositiveInt = 256
    dim: PositiveInt = 128
    num_layers: PositiveInt = 4
    num_heads: PositiveInt = 4
    num_kv_heads: PositiveInt = 2
    ffn_dim: PositiveInt = 352
    norm_eps: PositiveFloat = 1e-5
    rope_theta: PositiveFloat = 500_000.0
    tie_embeddings: bool = False
    """Share the input embedding and the output projection."""

    @model_validator(mode="after")
    def _shapes_fit(self) -> ModelConfig:
        if self.dim % self.num_heads:
            raise ValueError(f"dim {self.dim} is not a multiple of num_heads {self.num_heads}")
        if (self.dim // self.num_heads) % 2:
            raise ValueError(f"dim/num_heads is {self.dim // self.num_heads}; rotary embeddings need it even")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}")
        return self

    @property
    def num_params(self) -> int:
        """Number of parameters, counted from the shapes."""
        head_dim = self.dim // self.num_heads
        attention = self.dim * head_dim * (2 * self.num_heads + 2 * self.num_kv_heads)
        block = attention + 3 * self.dim * self.ffn_dim + 2 * self.dim
        embeddings = self.vocab_size * self.dim * (1 if self.tie_embeddings else 2)
        return embeddings + self.num_layers * block + self.dim


class DataConfig(Settings):
    """What a batch is: a function of (seed, step, global index) at a fixed global batch."""

    sequence_length: PositiveInt = 128
    """Tokens a sample feeds to the model; one more is read for the last target."""
    global_batch_size: PositiveInt = 8
    """Samples an optimizer step, over all ranks."""
    num_workers: Annotated[int, Field(ge=0)] = 0
    """Loader processes a rank; 0 reads in the training thread."""
    seed: int = 1234


class OptimizerConfig(Settings):
    """AdamW with a no-decay group and a cosine schedule with linear warm-up."""

    lr: PositiveFloat = 3e-3
    min_lr_ratio: Annotated[float, Field(ge=0, le=1)] = 0.1
    warmup_steps: Annotated[int, Field(ge=0)] = 10
    decay_steps: PositiveInt = 1000
    """The schedule's length. Not the run's target, so that a run may be extended and stay the same run."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    eps: PositiveFloat = 1e-8
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    """Of matrices; norms and other vectors are never decayed."""
    clip_norm: PositiveFloat = 1.0
    non_finite: Literal["skip", "stop"] = "skip"
    """A step whose gradient norm is not finite is left out on all ranks (skip), or ends the attempt (stop)."""

    @model_validator(mode="after")
    def _warmup_fits(self) -> OptimizerConfig:
        if self.warmup_steps >= self.decay_steps:
            raise ValueError(f"warmup_steps {self.warmup_steps} must be below decay_steps {self.decay_steps}")
        return self


class LoopConfig(Settings):
    """The training loop."""

    steps: PositiveInt = 100
    """Target step. The only setting that may change, and only grow, when a run is resumed."""
    micro_batch_size: PositiveInt = 4
    """Samples a rank computes at once; the rest of its share is accumulated."""
    seed: int = 0
    """Of initial weights and every rank's RNG."""
    eval_every: Annotated[int, Field(ge=0)] = 25
    """Steps between evaluations on the held-out part; 0: none."""
    eval_batches: PositiveInt = 2
    log_every: PositiveInt = 10
    collect_garbage_every: PositiveInt = 50
    """Steps between collections of Python's young objects, on all ranks at once: each waits for the others."""
    activation_checkpointing: bool = False
    compile: bool = False
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """Of forward and backward. auto: bf16 on GPU, fp32 on CPU. Parameters and moments are fp32."""
    peak_tflops_per_gpu: PositiveFloat | None = None
    """Dense bf16 peak for the log's MFU; filled from the instance table. None: MFU is not printed."""


Interval = Annotated[str, Field(pattern=r"^(\d+|\d+(\.\d+)?s|auto)$")] | PositiveInt


def parse_interval(text: str | int) -> tuple[int | None, float | None]:
    """`(steps, seconds)` of an interval; both None for `auto`."""
    if isinstance(text, int) or text.isdigit():
        return int(text), None
    if text == "auto":
        return None, None
    return None, float(text[:-1])


class CheckpointConfig(Settings):
    """Saves: how often, how, how many are kept."""

    writer: Literal["steadfast", "nvrx", "dcp", "sync"] = "steadfast"
    """steadfast is the product; the others are for comparison, with the same bytes, format and fsync."""
    stage: Literal["auto", "device", "host"] = "auto"
    """Where a snapshot is taken: a second copy in device memory, or straight into host memory."""
    persist_every: Interval = 10
    """Steps (`10`), seconds (`30s`) or `auto` (from measured cost and `failures_per_day`)."""
    snapshot_every: PositiveInt | None = None
    """Steps between snapshots into the memory tier; None: only what is persisted."""
    failures_per_day: PositiveFloat = 1.0
    """Of the whole job, for `auto`."""
    keep: Annotated[int, Field(ge=2)] = 3
    """Newest verified generations that stay."""
    keep_spaced: Annotated[int, Field(ge=0)] = 0
    """Older generations that stay beside them, spaced out in time."""
    overlap: Literal["wait", "skip"] = "skip"
    """When the previous save is still being written."""
    host_slots: Annotated[int, Field(ge=1, le=2)] = 2
    """Snapshots a rank holds in host memory. Two: one is always whole."""
    max_host_fraction: Annotated[float, Field(gt=0, le=0.9)] = 0.45
    """Of the memory limit that the arenas of a pod may take."""
    tolerate_failures: Annotated[int, Field(ge=0)] = 2
    """Failed saves in a row before the run stops with 90."""
    commit_timeout_s: Seconds = 600.0
    """How long a writer waits for the other ranks' acknowledgements."""
    drain_timeout_s: Seconds = 900.0


class RecoveryConfig(Settings):
    """Who restarts what, how often, and after how long a silence."""

    in_process: bool = False
    """NVRx's in-process restart. NVIDIA deprecates it; without it ft_launcher recovers everything."""
    fork_server: bool = True
    """Ranks and ft_launcher are forked from a process of the pod that has done their imports."""
    max_restarts: PositiveInt = 100
    """Launcher restarts; lack of progress ends a loop before this count does."""
    gang_restarts: PositiveInt = 10
    """Starts of ft_launcher in a pod that is kept, after the store was lost or the rendezvous closed."""
    max_no_progress_cycles: PositiveInt = 3
    collective_timeout_s: Seconds | None = None
    """None: derived from the measured step time."""
    heartbeat_timeout_s: Seconds | None = None
    """None: derived."""
    start_timeout_s: Seconds = 600.0
    """First heartbeat: imports, rendezvous, load, compile."""
    rendezvous_timeout_s: Seconds = 900.0
    last_call_timeout_s: PositiveInt = 2
    """How long a restart waits for a node of the last round before a spare takes its place. A node that was only
    slow to end its ranks becomes the spare then, and its snapshots in memory are lost."""
    termination_grace_s: Seconds = 300.0
    """Between SIGTERM and SIGKILL of a pod; must cover the emergency save, and outlast every other timeout."""
    slow_rank_factor: Annotated[float, Field(gt=1)] = 2.0
    slow_rank_windows: PositiveInt = 3
    efa_pause_s: Annotated[float, Field(ge=0)] = 0.0
    """Wait before communicators are made again in the same process (EFA releases late)."""

    def timeouts(self, device: Literal["cuda", "cpu"], step_s: float | None = None) -> Timeouts:
        """The one table, in the order in which layers must act."""
        return derive(
            collective_s=self.collective_timeout_s,
            heartbeat_s=self.heartbeat_timeout_s,
            grace_s=self.termination_grace_s,
            start_s=self.start_timeout_s,
            rendezvous_s=self.rendezvous_timeout_s,
            device=device,
            step_s=step_s,
        )

    @model_validator(mode="after")
    def _timeouts_in_order(self) -> RecoveryConfig:
        if problems := self.timeouts("cuda").contradictions():
            raise ValueError("; ".join(problems))
        return self


class TrainConfig(Settings):
    """All of it."""

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    loop: LoopConfig = LoopConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    recovery: RecoveryConfig = RecoveryConfig()

    def share(self, world_size: int) -> tuple[int, int]:
        """`(samples a rank, micro batches a rank)` of one step.

        Raises ValueError if the global batch does not divide.
        """
        rank_batch, rest = divmod(self.data.global_batch_size, world_size)
        if rest:
            raise ValueError(
                f"data.global_batch_size {self.data.global_batch_size} is not a multiple of "
                f"the {world_size} ranks; change it, or the number of nodes"
            )
        micro = min(self.loop.micro_batch_size, rank_batch)
        if rank_batch % micro:
            raise ValueError(
                f"{rank_batch} samples a rank are not a multiple of loop.micro_batch_size {micro}; change one"
            )
        return rank_batch, rank_batch // micro


def resume_differences(before: TrainConfig, after: TrainConfig) -> list[str]:
    """What forbids resuming: every setting that differs, `loop.steps` alone excepted when it does not shrink."""
    problems = []
    old, new = before.model_dump(), after.model_dump()
    for section, values in old.items():
        for key, value in values.items():
            now = new[section][key]
            if (section, key) == ("loop", "steps"):
                if now < value:
                    problems.append(f"loop.steps: {now} is below the run's target {value}; it may only grow")
            elif now != value:
                problems.append(f"{section}.{key}: the run has {value!r}, now {now!r}; a resumed run keeps it")
    return problems
