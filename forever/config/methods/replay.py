"""Hyper-parameters of fine-tuning, joint training and all methods that replay, with sources."""

from importlib.util import find_spec
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from forever.config.methods.base import MethodConfig
from forever.config.parts import (
    NUMBER,
    AboveZero,
    BudgetConfig,
    Count,
    Decay,
    Natural,
    NotNegative,
    RunParts,
    Tokens,
    Whole,
    at_most,
)
from forever.errors import InputError, unknown
from forever.replay.regularizers import RegularizerName
from forever.replay.schedules import RANDOM, SCHEDULES


class FinetuneConfig(MethodConfig):
    name: Literal["finetune"] = "finetune"
    code = "forever.methods.plain:Finetune"
    probe_every: Count | None = None
    """Updates between two probes of the loss on kept examples, for the forgetting rate."""


class MtlConfig(MethodConfig):
    name: Literal["mtl"] = "mtl"
    code = "forever.methods.plain:Mtl"
    joint = True


class MixReplayConfig(MethodConfig):
    name: Literal["mix_replay"] = "mix_replay"
    code = "forever.methods.plain:MixReplay"


class ScheduledReplayConfig(MethodConfig):
    """What every scheduled replay must say. Defaults are FOREVER's."""

    renamed = {"warmup_steps": "day_steps"}

    day_steps: Count = 24
    """S: the updates that make the first day. They count as part of the task, because the paper's
    sum begins at the first update (docs/protocol.md#clock-and-replay)."""
    memory_epochs: Count | Literal["share"] = 2
    """E_mem: passes over the memory at each event. With "share" an event is an equal part of the
    budget, which the events of the standard schedule and the end of the task divide."""
    consolidation_epochs: Whole | Literal["matched"] = 1
    """Passes when the task is over (paper: one short epoch). "matched" adds what is left of the
    standard schedule's budget, so that schedules can be compared at equal cost."""

    def check(self, run: RunParts) -> None:
        super().check(run)
        if self.memory_epochs == "share" and run.budget == BudgetConfig():
            raise InputError(
                f"method {self.name}: memory_epochs='share' divides a budget, and there is none; "
                "set budget.examples or budget.seconds, or a number of passes"
            )


class ForeverConfig(ScheduledReplayConfig):
    """Defaults are the paper's (implementation details) unless a reason is given."""

    name: Literal["forever"] = "forever"
    code = "forever.methods.forever:Forever"
    clock: Literal["model", "steps"] = "model"
    """What makes time pass: movement of the parameters (paper), or the number of updates (+STC)."""
    days: str | list[AboveZero] = "ebbinghaus"
    """A named schedule or explicit days in the order in which they are awaited; "random" draws as
    many as the standard schedule has."""
    source: Literal["memory", "task"] = "memory"
    """What an event trains on: the memory, or as many examples of the current task, which pads the
    task with as many updates as replay would."""
    smoothing: Annotated[float, Field(gt=0, le=1), NUMBER] = 0.05
    """lambda of the moving average mu."""
    regularizer: RegularizerName = "intensity"
    """What the penalty follows: nothing, the intensity of learning (paper), importance, or both."""
    beta: NotNegative = 1e-3
    """beta_base."""
    gamma: NotNegative = 1.0
    """Ours, not given in the paper: 1 makes s = clip(r, 0.5, 3), so bounds are bounds on r."""
    min_strength: NotNegative = 0.5
    """Lower bound of the strength s (paper)."""
    max_strength: NotNegative = 3.0
    """Upper bound of s (paper)."""
    added = {"source": "memory"}

    @field_validator("days")
    @classmethod
    def _known_schedule(cls, value: str | list[float]) -> str | list[float]:
        if isinstance(value, str) and value not in (*SCHEDULES, RANDOM):
            raise unknown("schedule", value, (*SCHEDULES, RANDOM))
        return value

    def estimate(self) -> str:
        if self.clock == "steps":
            return ""
        return "Replays by the model clock are an estimate: fewer come if updates shrink."

    def updates_of_day(self) -> int | None:
        return self.day_steps if self.clock == "steps" else None

    @model_validator(mode="after")
    def _ordered_bounds(self) -> "ForeverConfig":
        if self.min_strength > self.max_strength:
            bounds = f"min_strength={self.min_strength} is above max_strength={self.max_strength}"
            raise InputError(bounds)
        return self


class FixedIntervalConfig(ScheduledReplayConfig):
    """Ours: the paper gives no numbers for this baseline."""

    name: Literal["fixed_interval"] = "fixed_interval"
    code = "forever.methods.fixed_interval:FixedInterval"
    day_steps: Count = 24
    """S of the FOREVER whose number of events J is matched."""
    interval: Count | None = None
    """Updates between events; None is floor(T / events), and the paper's example literally means
    24."""
    events: Count | None = None
    """How many events a task has at most; None is J. On the model clock FOREVER has fewer where its
    updates shrink."""
    added = {"events": None}


class VbmConfig(ScheduledReplayConfig):
    """Sources: the paper and its code."""

    name: Literal["vbm"] = "vbm"
    code = "forever.methods.vbm:Vbm"
    day_steps: Count = 24
    """S, the updates of a day, or of the FOREVER whose budget is matched."""
    views: Count = 2
    """V: with 2, all is shown about as often as by FOREVER with two passes: 14 times and 13. 4 is
    best in the paper, for images, and 16 too long an interval."""
    consistency: NotNegative = 1.0
    """alpha."""
    drop: Decay = 0.1
    """Ours: the paper augments images."""
    days: Literal["equal", "ebbinghaus"] = "ebbinghaus"
    """ebbinghaus: the standard days in updates, S a day ("step-based Ebbinghaus replay", as FOREVER
    has it); with V = 2 the best of three readings on held-out examples (docs/protocol.md). equal:
    as many recalls as spend FOREVER's budget, at equal distances."""
    memory_epochs: Count | Literal["share"] = 1
    """Passes at each event: a recall is one pass, which shows every example `views` times; or a
    "share" of the budget, as in other scheduled replay."""
    # Narrower than in the base class, which is safe for a frozen field.
    consolidation_epochs: Whole = 1  # pyright: ignore[reportIncompatibleVariableOverride]
    """Passes of the last recall, when the task is over."""
    retired = {"variant": "interval"}
    added = {"days": "equal"}

    def check(self, run: RunParts) -> None:
        super().check(run)
        if run.optim.batch_size % self.views:
            raise InputError(
                f"method vbm: optim.batch_size={run.optim.batch_size} cannot hold whole examples "
                f"of {self.views} views; make it a multiple of method.views"
            )


class SsrConfig(MethodConfig):
    """From the authors' scripts; it keeps as many examples as others do."""

    name: Literal["ssr"] = "ssr"
    code = "forever.methods.ssr.method:Ssr"
    needs = "lora"
    demos: Count | None = None
    """Examples whose pairs make the prompts (paper: 1 % of all); None is as many as are kept."""
    samples: Annotated[Natural, at_most(1000)] = 3
    """Continuations of each prompt."""
    temperature: AboveZero = 0.9
    """Of sampling."""
    top_p: Annotated[float, Field(gt=0, le=1), NUMBER] = 0.6
    """Of sampling."""
    repetition_penalty: Annotated[float, Field(ge=1), NUMBER, at_most(1e3)] = 1.2
    """Of sampling."""
    max_tokens: Tokens = 2048
    """Of prompt and continuation."""
    max_input: Count = 800
    """Longest written input, in tokens."""
    max_prompt: Count = 500
    """Longest definition with written input, in tokens."""
    max_output: Count = 128
    """Longest answer, in tokens."""
    clusters: Count = 20
    """C of K-means, at most the number of examples kept."""
    encoder: Annotated[str, Field(min_length=1)] | None = None
    """Sentence encoder, a hub name or folder (authors: sup-SimCSE-RoBERTa-base) or the backbone."""

    def models(self) -> dict[str, str]:
        return {"encoder": self.encoder} if self.encoder else {}

    def estimate(self) -> str:
        return "Estimate: SSR keeps what it manages to write."

    def check(self, run: RunParts) -> None:
        super().check(run)
        if find_spec("sklearn") is None:
            raise InputError("method ssr needs scikit-learn; pip install 'forever-cl[ssr]'")
        if not run.memory.fraction:
            raise InputError("method ssr: memory.fraction=0 leaves no examples to write; raise it")
