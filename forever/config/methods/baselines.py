"""Hyper-parameters of the baselines that regularise, route, mask or merge, with sources."""

from typing import Annotated, Literal

from forever.config.methods.base import MethodConfig, Weights
from forever.config.orders import named_tasks
from forever.config.parts import (
    AboveZero,
    Count,
    Decay,
    Flag,
    Natural,
    NotNegative,
    RunParts,
    Share,
    Whole,
    at_most,
)
from forever.errors import InputError

# Layers whose input is as wide as the hidden states.
_ON_HIDDEN_STATES = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")


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
        if layer and tasks * run.model.rank > width:
            raise InputError(
                f"method olora: {tasks} tasks of rank {run.model.rank} cannot be orthogonal in the "
                f"{width} dimensions of {layer}; lower model.rank or the number of tasks"
            )


class MoeLoraConfig(MethodConfig):
    """No value here is from the authors' code, which is not public."""

    name: Literal["moelora"] = "moelora"
    code = "forever.methods.moelora.method:MoeLora"
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
    code = "forever.methods.sapt.method:Sapt"
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
