"""Hyper-parameters of our methods, with sources, in the order of the paper's main table.

These are bounds and plain replay, then methods without memory, methods with memory, and FOREVER. A
new method adds its class and a line to `OURS`.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from forever.config.methods.base import MethodConfig, Weights
from forever.config.orders import named_tasks
from forever.config.parts import (
    NUMBER,
    AboveZero,
    BudgetConfig,
    Count,
    Decay,
    Flag,
    Natural,
    NotNegative,
    RunParts,
    Share,
    Tokens,
    Whole,
    at_most,
)
from forever.errors import InputError, unknown
from forever.replay.regularizers import PenaltyScale, RegularizerName
from forever.replay.schedules import CONTROLS, SCHEDULES

# Layers whose input is as wide as the hidden states.
_ON_HIDDEN_STATES = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")


class FinetuneConfig(MethodConfig):
    name: Literal["finetune"] = "finetune"
    code = "forever.methods.plain:Finetune"
    probe_every: Count | None = None
    """Updates between two probes of the loss on kept examples, for the forgetting rate."""


class MtlConfig(MethodConfig):
    name: Literal["mtl"] = "mtl"
    code = "forever.methods.plain:Mtl"
    joint = True


class AnchoredConfig(MethodConfig):
    """What holds replay to what was known, beside the right answers; defaults are FOREVER's."""

    day_steps: Count = 24
    """S: the updates that make the first day, whose pace of learning is mu_0."""
    smoothing: Annotated[float, Field(gt=0, le=1), NUMBER] = 0.05
    """lambda of the moving average mu."""
    regularizer: RegularizerName = "none"
    """What the penalty follows: nothing, the intensity of learning (paper), importance, or both. Or
    it holds the answers to the replayed examples: kl to those of the model at the start of the
    task, logits to those at the end of the example's own task (DER)."""
    beta: NotNegative = 1e-3
    """beta_base."""
    gamma: NotNegative = 1.0
    """Ours, not given in the paper: 1 makes s = clip(r, 0.5, 3), so bounds are bounds on r."""
    min_strength: NotNegative = 0.5
    """Lower bound of the strength s (paper)."""
    max_strength: NotNegative = 3.0
    """Upper bound of s (paper)."""
    penalty_scale: PenaltyScale = "update"
    """What has all of beta: an update on memory (paper), so that the pull grows with what is kept;
    an event, whose updates divide it (ours); or a full batch of replayed examples, so that all ways
    to spend one budget of examples have the same sum (ours)."""
    logits: Count | Literal["all"] | None = None
    """How many logits `kl` and `logits` keep at each position of an answer: all, or the K largest
    and the mass of the rest. Ours; None is all of up to 4,096, and else 64."""

    def check(self, run: RunParts) -> None:
        super().check(run)
        if self.penalty_scale == "event" and run.budget.seconds is not None:
            raise InputError(
                f"method {self.name}: penalty_scale='event' divides beta by the updates of an "
                "event, and with budget.seconds nobody knows them before; use 'batch'"
            )

    @model_validator(mode="after")
    def _ordered_bounds(self) -> Self:
        if self.min_strength > self.max_strength:
            bounds = f"min_strength={self.min_strength} is above max_strength={self.max_strength}"
            raise InputError(bounds)
        return self


class InterleavedConfig(AnchoredConfig):
    """Memory mixed into the batches of the task; any of the regularisers may hold it."""

    # Narrower than in the base class, which is safe for a frozen field.
    penalty_scale: Literal["update", "batch"] = "batch"  # pyright: ignore[reportIncompatibleVariableOverride]
    """What has all of beta: a full batch of replayed examples, or an update with any of them."""

    def identity(self, values: Mapping[str, Any]) -> dict[str, Any]:
        # Without a penalty none of its fields does anything.
        idle = AnchoredConfig.model_fields.keys() - {"name"} if self.regularizer == "none" else ()
        return {key: value for key, value in super().identity(values).items() if key not in idle}


class MixReplayConfig(InterleavedConfig):
    name: Literal["mix_replay"] = "mix_replay"
    code = "forever.methods.mix_replay:MixReplay"


class DerConfig(InterleavedConfig):
    """Dark experience replay, DER++ (Buzzega et al. 2020)."""

    name: Literal["der"] = "der"
    code = "forever.methods.mix_replay:Der"
    regularizer: Literal["logits"] = "logits"  # pyright: ignore[reportIncompatibleVariableOverride]
    """What the model said of an example at the end of the example's own task."""
    beta: NotNegative = 0.5
    """The paper's alpha, of the logits' term: 0.1 to 1 for images (aimagelab/mammoth:
    utils/best_args.py), and ours is in the middle. Its beta, of the right answers, is 0.5 to 1
    there and 1 here, since replayed examples count as the task's own do."""


class ScheduledReplayConfig(MethodConfig):
    """What every scheduled replay must say. Defaults are FOREVER's."""

    renamed = {"warmup_steps": "day_steps"}
    added = {"end_rate": "whole"}

    day_steps: Count = 24
    """S: the updates that make the first day. They count as part of the task, because the paper's
    sum begins at the first update (docs/protocol.md#clock-and-replay)."""
    memory_epochs: Count | Literal["share"] = 2
    """E_mem: passes over the memory at each event. With "share" an event is an equal part of the
    budget, which the events of the standard schedule and the end of the task divide."""
    consolidation_epochs: Whole | Literal["matched"] = 1
    """Passes when the task is over (paper: one short epoch). "matched" adds what is left of the
    standard schedule's budget, so that schedules can be compared at equal cost."""
    end_rate: Literal["whole", "current", "none"] = "whole"
    """The learning rate of the replay that ends a task: `optim.lr`, that of the task's last update,
    which a decay has brought near zero, or no such replay. The paper is silent; ours."""

    def identity(self, values: Mapping[str, Any]) -> dict[str, Any]:
        kept = super().identity(values)
        # Earlier versions drew anew for each event, and so repeated examples that others lacked.
        return kept | ({"draws": "one stream"} if self.memory_epochs == "share" else {})

    def check(self, run: RunParts) -> None:
        super().check(run)
        if self.memory_epochs == "share" and run.budget == BudgetConfig():
            raise InputError(
                f"method {self.name}: memory_epochs='share' divides a budget, and there is none; "
                "set budget.examples or budget.seconds, or a number of passes"
            )


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
    added = {**ScheduledReplayConfig.added, "events": None}


class EwcConfig(MethodConfig):
    """Sources differ by four orders of magnitude in lambda, as their Fisher information does."""

    name: Literal["ewc"] = "ewc"
    code = "forever.methods.ewc:Ewc"
    strength: NotNegative = 1e4
    """lambda is ours; sensible values are 4e2 to 4e5, tuned on one order only. Near convergence
    sum F is 0.01 to 1 and entries drift by 0.01 to 0.05: the penalty matters from 1e3 on."""
    mode: Literal["online", "separate"] = "online"
    """online: Omega <- gamma Omega + F around the end of the last task (Schwarz et al. 2018);
    separate: each task has a penalty around its own end (Kirkpatrick et al. 2017)."""
    decay: Share = 1.0
    """gamma: what stays of the earlier tasks' importance. 1 keeps all of it, as the paper does."""
    retired = {"fisher_labels": "gold"}


class OLoraConfig(MethodConfig):
    """Sources: scripts/order_1.sh and scripts_llama/order_1.sh of the authors' code."""

    name: Literal["olora"] = "olora"
    code = "forever.methods.olora:OLora"
    needs = "banks"
    begins_frozen = True
    orthogonality: NotNegative = 0.5
    """l1: 0.5 for orders 1 to 3; the author tuned it in 0 to 5."""
    norm: NotNegative = 0.0
    """l2: only in the code and the appendix; 0 in most scripts, the author tuned it in 0 to 0.5."""
    orth_norm: Literal["l1", "sq"] = "l1"
    """Sum of absolute values (code) or of squares (paper). At random initialisation of a width of
    1024 the first is 75 times the second, so an l1 belongs to one of them."""

    def check_width(self, run: RunParts, tasks: int, width: int, where: str = "") -> None:
        on_hidden_states = (name for name in run.model.targets if name in _ON_HIDDEN_STATES)
        layer = where or next(on_hidden_states, None)
        before = 0 if run.model.init is None else 1  # adapters
        if layer and (before + tasks) * run.model.rank > width:
            raise InputError(
                f"method olora: {tasks} tasks of rank {run.model.rank} cannot be orthogonal in the "
                f"{width} dimensions of {layer}; lower model.rank or the number of tasks"
            )


class MoeLoraConfig(MethodConfig):
    """No value here is from the authors' code, which is not public."""

    name: Literal["moelora"] = "moelora"
    code = "forever.methods.moelora:MoeLora"
    needs = "banks"
    experts: Annotated[Natural, at_most(2**10)] | None = None
    """N: 8 in CoIN; None is the number of tasks, known before the first one (MIGU paper)."""
    top_k: Count = 2
    """k: 2 is the common choice."""
    renormalise: Flag = True
    """The k gates sum to one."""
    balance: NotNegative = 0.01
    """lb: the convention of Switch Transformers."""
    contrast: NotNegative = 0.01
    """lc: ours; 0 is the plain mixture of experts."""
    temperature: AboveZero = 0.1
    """tau of the contrastive term: ours."""
    contrast_tokens: Count = 64
    """Tokens of a micro-batch whose outputs are compared: ours, to bound the cost."""

    def check(self, run: RunParts) -> None:
        super().check(run)
        tasks = named_tasks(run.data.benchmark, run.data.order)
        experts = self.experts_for(tasks or 2)  # an order that does not exist is refused later
        if self.top_k > experts:
            raise InputError(
                f"method moelora: top_k={self.top_k} of {experts} experts; lower method.top_k"
            )
        if self.top_k == 1 and self.renormalise and experts > 1:
            raise InputError(
                "method moelora: with top_k=1 and renormalise the gate is always 1 and the router "
                "learns nothing; set method.renormalise=false or method.top_k=2"
            )

    def experts_for(self, tasks: int) -> int:
        """Return N for a run of so many tasks, which is never below `top_k`."""
        return self.experts or max(tasks, self.top_k)


class SaptConfig(MethodConfig):
    """Sources: gen_script_*.py of the authors' code."""

    name: Literal["sapt"] = "sapt"
    code = "forever.methods.sapt:Sapt"
    needs = "banks"
    memory_weight: NotNegative = 1.0
    """lambda: 1 for LLaMA on SuperNI, 2 on the long sequence; 0.1 to 0.5 for T5."""
    hidden: Annotated[Natural, at_most(2**14)] = 100
    """Bottleneck of the query network."""
    detach_frozen: Flag = False
    """Cut gradients through old adapters, as the code does."""
    retired = {"memory_prompts": "real", "generator_steps": 5000}


class MiguConfig(MethodConfig):
    """Sources: the paper, its appendices for T."""

    name: Literal["migu"] = "migu"
    code = "forever.methods.migu:Migu"
    needs = "banks"
    replay: Flag = True
    """Train on the memory, too, as MixReplay: FOREVER lists MIGU among methods with memory."""
    masked: Share | None = None
    """T, the masked fraction of a matrix's rows; None is 0.4 with replay, 0.7 without (paper)."""
    retired = {"hard_mask": False}

    @property
    def fraction(self) -> float:
        """T as it is used."""
        if self.masked is not None:
            return self.masked
        return 0.4 if self.replay else 0.7


class SsrConfig(MethodConfig):
    """From the authors' scripts; it keeps as many examples as others do."""

    name: Literal["ssr"] = "ssr"
    code = "forever.methods.ssr:Ssr"
    needs = "lora"
    needs_inputs = True
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


class RecurrentKifConfig(MethodConfig):
    """Sources: the authors' scripts and trainer.py."""

    name: Literal["recurrent_kif"] = "recurrent_kif"
    code = "forever.methods.recurrent_kif:RecurrentKif"
    inner_steps: Count = 8
    """Q, updates on the task in a block."""
    outer_steps: Count = 4
    """P, updates on random batches of memory after it."""
    quantile: Decay = 0.8
    """q: the top 20 % of all entries are important."""
    smoothing: tuple[Decay, Decay] = (0.85, 0.85)
    """b1, b2: 0.85 in the code; summaries of the paper say 0.55."""
    both: Weights = (0.4, 0.6)
    """(w_in, w_out) of entries that matter to both."""
    inner_only: Weights = (1.0, 0.0)
    """Of entries that matter to the task alone."""
    outer_only: Weights = (0.0, 1.0)
    """Of entries that matter to memory alone."""
    neither: Weights = (0.5, 0.5)
    """Of all others, three entries in five and more."""


class AimMergingConfig(MethodConfig):
    """Sources: src/finetune_ours.py and scripts; tuned there at batch 32."""

    name: Literal["aimmerging"] = "aimmerging"
    code = "forever.methods.aimmerging:AimMerging"
    interval: Count = 8
    """S at the start: task updates between merges as planned."""
    outer_steps: Count = 8
    """P at the start: updates on memory at a merge; P follows S in proportion."""
    min_interval: Count = 2
    """Bounds of S."""
    max_interval: Count = 128
    """Bounds of S."""
    cold_merges: Whole = 3
    """The interval is fixed up to the merge after these."""
    forgetting: AboveZero = 2.0
    """phi: memory loss above this multiple of its calibrated mean counts as forgetting."""
    learning_interval: Count = 70
    """The current task counts as important while S is at most this."""
    both: Weights = (0.5, 0.5)
    """(w_in, w_out) if past and present matter."""
    past: Weights = (0.4, 0.6)
    """If only the past matters: its loss passed the threshold more than once."""
    present: Weights = (0.6, 0.4)
    """If only the present matters: S is short."""
    neither: Weights = (0.5, 0.5)
    """If neither does."""
    retired = {"true_gap": False}

    def estimate(self) -> str:
        return "Estimate: AIMMerging replays when its losses say so."

    def check(self, run: RunParts) -> None:
        super().check(run)
        if not self.min_interval <= self.interval <= self.max_interval:
            raise InputError(
                f"method aimmerging: interval={self.interval} is outside of min_interval="
                f"{self.min_interval} and max_interval={self.max_interval}; change one of them"
            )


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
    has it); with V = 2 the best of three variants on held-out examples (docs/protocol.md). equal:
    as many recalls as spend FOREVER's budget, at equal distances."""
    memory_epochs: Count | Literal["share"] = 1
    """Passes at each event: a recall is one pass, which shows every example `views` times; or a
    "share" of the budget, as in other scheduled replay."""
    # Narrower than in the base class, which is safe for a frozen field.
    consolidation_epochs: Whole = 1  # pyright: ignore[reportIncompatibleVariableOverride]
    """Passes of the last recall, when the task is over."""
    retired = {"variant": "interval"}
    added = {**ScheduledReplayConfig.added, "days": "equal"}

    def check(self, run: RunParts) -> None:
        super().check(run)
        if run.optim.batch_size % self.views:
            raise InputError(
                f"method vbm: optim.batch_size={run.optim.batch_size} cannot hold whole examples "
                f"of {self.views} views; make it a multiple of method.views"
            )


class ForeverConfig(ScheduledReplayConfig, AnchoredConfig):
    """Defaults are the paper's (implementation details) unless a reason is given."""

    name: Literal["forever"] = "forever"
    code = "forever.methods.forever:Forever"
    clock: Literal["model", "steps"] = "model"
    """What makes time pass: movement of the parameters (paper), or the number of updates (+STC)."""
    days: str | list[AboveZero] = "ebbinghaus"
    """A named schedule or explicit days in the order in which they are awaited. Controls have as
    many as the standard schedule: random, evenly, permuted (its gaps), log_uniform."""
    source: Literal["memory", "task"] = "memory"
    """What an event trains on: the memory, or as many examples of the current task, which pads the
    task with as many updates as replay would."""
    regularizer: RegularizerName = "intensity"
    """What the penalty follows: the intensity of learning (paper), importance, both, or nothing; or
    what holds the answers to replayed examples, as in MixReplay."""
    added = {
        **ScheduledReplayConfig.added,
        "source": "memory",
        "penalty_scale": "update",
        "logits": None,
    }

    def check(self, run: RunParts) -> None:
        super().check(run)
        if self.source == "task" and self.regularizer in ("kl", "logits"):
            raise InputError(
                f"method forever: regularizer={self.regularizer} holds the answers to replayed "
                "examples, and source='task' replays none; use another one, or 'none'"
            )

    @field_validator("days")
    @classmethod
    def _known_schedule(cls, value: str | list[float]) -> str | list[float]:
        if isinstance(value, str) and value not in (*SCHEDULES, *CONTROLS):
            raise unknown("schedule", value, (*SCHEDULES, *CONTROLS))
        return value

    def estimate(self) -> str:
        if self.clock == "steps":
            return ""
        return "Replays by the model clock are an estimate: fewer come if updates shrink."

    def updates_of_day(self) -> int | None:
        return self.day_steps if self.clock == "steps" else None


OURS: tuple[type[MethodConfig], ...] = (
    FinetuneConfig,
    MtlConfig,
    MixReplayConfig,
    DerConfig,
    FixedIntervalConfig,
    EwcConfig,
    OLoraConfig,
    MoeLoraConfig,
    SaptConfig,
    MiguConfig,
    SsrConfig,
    RecurrentKifConfig,
    AimMergingConfig,
    VbmConfig,
    ForeverConfig,
)
