"""One table of methods, each run on the toy benchmark: what must hold for all of them, and which of
them are equal.

A new method is added to CONFIGS and is then held to the same rules.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import yaml
from helpers import CONFIGS, FOREVER, Outcome, canned_sample, execute, outcome

from forever.config.run import RunConfig
from forever.data import collation
from forever.data.tasks import Task
from forever.errors import InputError
from forever.evaluation import decoding
from forever.launch.local import run_local
from forever.methods.forever import Forever
from forever.methods.registry import METHODS, build_method
from forever.models import lora
from forever.replay.clock import CLOCKS
from forever.replay.regularizers import RegularizerName
from forever.replay.schedules import CONTROLS, SCHEDULES
from forever.training import step as step_module
from forever.training.learner import Learner
from forever.training.step import optimizer_step
from forever.training.steps import Step, StepRecord

# These train other things in the first task than one plain adapter on plain rows; their neutral
# settings are tested where their own invariants are.
OWN_FIRST_TASK = {"olora squares", "moelora", "moelora one expert a token"}
# These have an adapter a task, so what is saved is no single one.
SEVERAL_ADAPTERS = {"sapt", "sapt detached"}
# What of a line in steps.jsonl is training; some methods note the clock's readings there, too.
TRAINING = ["task", "step", "update", "epoch", "kind", "loss", "penalty", "update_norm", "lr"]
TRAINING += ["rows", "tokens"]
Run = Callable[..., Outcome]
each_row = pytest.mark.parametrize("name", CONFIGS)


def with_method(config: RunConfig, method: dict[str, Any]) -> RunConfig:
    return RunConfig.parse(config.model_dump(mode="json") | {"method": method})


@pytest.fixture(scope="module")
def run(small_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """The outcome of a method on the toy benchmark, run once a configuration unless `again`."""
    done: dict[str, Outcome] = {}

    def outcome_of(method: dict[str, Any], again: bool = False, **changes: Any) -> Outcome:
        config = with_method(small_config.override(changes), method)
        if again or config.fingerprint() not in done:
            path = tmp_path_factory.mktemp("run")
            execute(config, path)
            done[config.fingerprint()] = outcome(path)
        return done[config.fingerprint()]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "sample", canned_sample)
        yield outcome_of


def journal(found: Outcome, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in found.files[f"{name}.jsonl"].splitlines()]


def updates(found: Outcome) -> list[list[Any]]:
    return [[line[field] for field in TRAINING] for line in journal(found, "steps")]


def same_training(a: Outcome, b: Outcome) -> bool:
    """Whether updates, weights and scores are equal, bit for bit."""
    if updates(a) != updates(b) or a.adapter.keys() != b.adapter.keys():
        return False
    same = all(torch.equal(tensor, b.adapter[name]) for name, tensor in a.adapter.items())
    return same and a.result["matrix"] == b.result["matrix"]


# ---- all methods


def test_every_method_and_slot_is_in_the_table() -> None:
    def values(field: str, default: str) -> set[str]:
        found = [fields.get(field, default) for fields in CONFIGS.values()]
        return {value for value in found if isinstance(value, str)}

    assert values("name", "") >= METHODS.keys()
    assert values("clock", "model") == CLOCKS.keys()
    assert values("days", "ebbinghaus") == {*SCHEDULES, *CONTROLS}
    assert values("regularizer", "intensity") == {*get_args(RegularizerName)}


@each_row
def test_built_from_configuration_and_back(name: str) -> None:
    config = RunConfig.parse({"method": CONFIGS[name]})
    again = RunConfig.parse(yaml.safe_load(yaml.safe_dump(config.model_dump(mode="json"))))
    assert again == config
    method = build_method(config.method)
    assert type(method) is METHODS[CONFIGS[name]["name"]]
    assert method.config == config.method
    assert method.tensors == method.state == {}  # work starts with training


@each_row
def test_repeats_bit_for_bit_and_learns_something(run: Run, name: str) -> None:
    first, second = run(CONFIGS[name]), run(CONFIGS[name], again=True)
    assert first.differences(second) == []
    assert all(t.any() for name, t in first.adapter.items() if "shift" not in name)


@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "mtl"])
def test_memory_rows_stay_within_the_quota(
    run: Run, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches hold rows of the task and at most floor(0.2 * 8) = 1 row of each earlier one, the
    same every time."""
    tasks: list[str] = []

    def watch(learner: Learner, method: Any, step: Step) -> StepRecord:
        assert learner.task is not None
        tasks.append(learner.task.name)
        rows = {example.id for example in step.batch.examples}
        kept = {example.id for example in learner.memory.examples}
        own = {example.id for example in learner.task.train}
        padded = name == "forever pad" and step.kind != "task"
        assert rows <= (own if padded else kept | own if step.kind == "task" else kept)
        earlier = [id_.split("/")[0] for id_ in kept]
        assert (learner.stage > 0) <= len(earlier) <= learner.stage  # SSR may write fewer
        assert len({*earlier}) == len(earlier)
        assert learner.task.name not in earlier
        return optimizer_step(learner, method, step)

    monkeypatch.setattr(step_module, "optimizer_step", watch)
    run(CONFIGS[name], again=True)
    assert [*dict.fromkeys(tasks)] == ["colour", "shape", "weight"]


@pytest.mark.parametrize("name", [n for n in CONFIGS if n.startswith(("forever", "fixed"))])
def test_events_are_whole_passes_over_the_memory(run: Run, name: str) -> None:
    """Counted through rows of the journal; the task at stage k has k rows of memory."""
    found = run(CONFIGS[name])
    stages, seen = found.result["stages"], Counter[str]()
    for event in journal(found, "events"):
        kept = stages.index(event["task"])
        assert kept
        assert event["rows"] % kept == 0
        seen[event["kind"]] += event["rows"]
    assert seen == Counter({k: n for k, n in found.result["rows_seen"].items() if k != "task"})


SPENDS = ("der", "forever", "fixed", "vbm", "mix_replay", "migu", "ssr")


@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "mtl"])
def test_a_budget_is_spent_exactly_or_the_run_is_marked(run: Run, name: str) -> None:
    """Six examples in each of the two tasks that have a memory."""
    result = run(CONFIGS[name], **{"budget.examples": 6}).result
    counts = [result["notes"][stage]["examples"] for stage in result["stages"]]
    replayed = [count.get("replayed", 0) + count.get("padded", 0) for count in counts]
    assert sum(replayed) == result["examples"]["replayed"] + result["examples"]["padded"]
    if name.startswith(SPENDS) and name != "migu alone":
        assert (replayed, result["budget"]) == ([0, 6, 6], "exact")
    elif max(replayed) > 6:
        assert result["budget"] == "over"
    else:
        assert (min(replayed[1:]) < 6, result["budget"]) == (True, "under")


@pytest.mark.parametrize("method", [{"memory_epochs": "share"}, {"name": "mix_replay"}], ids=str)
def test_a_budget_may_be_another_for_each_task(run: Run, method: dict[str, Any]) -> None:
    result = run({"name": "forever"} | method, **{"budget.examples": [6, 3]}).result
    counts = [result["notes"][stage]["examples"]["replayed"] for stage in result["stages"][1:]]
    assert (counts, result["budget"]) == ([6, 3], "exact")


def test_forever_with_its_own_dose_as_its_budget_is_the_same_run(run: Run) -> None:
    own = run(CONFIGS["forever"])
    notes, (_, *later) = own.result["notes"], own.result["stages"]
    dose = [notes[stage]["examples"]["replayed"] for stage in later]
    assert same_training(own, run(CONFIGS["forever"], **{"budget.examples": dose}))
    with pytest.raises(InputError, match="2 numbers, and there are 2 tasks; give 1"):
        run(CONFIGS["forever"], **{"budget.examples": dose, "data.order": ["shape", "colour"]})


@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "mtl"])
def test_a_budget_of_seconds_is_spent_to_an_update_or_the_run_is_marked(
    run: Run, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two seconds in each of the two tasks that have a memory, with an update in a second."""
    monkeypatch.setattr(step_module, "perf_counter", count(step=1.0).__next__)
    result = run(CONFIGS[name], **{"budget.seconds": 2.0}).result
    first, *later = (note["replay_seconds"] for note in result["notes"].values())
    assert first == 0
    if name.startswith(("forever", "fixed", "vbm")):
        assert (later, result["budget"]) == ([2, 2], "exact")
    elif name.startswith(SPENDS) and name != "migu alone":
        assert (later, result["budget"]) == (pytest.approx([2, 2], abs=0.5), "exact")
    elif max(later) >= 3:
        assert result["budget"] == "over"
    else:
        assert result["budget"] == ("under" if min(later) <= 1 else "exact")


@pytest.mark.parametrize("name", [name for name in CONFIGS if name not in OWN_FIRST_TASK])
def test_one_task_is_fine_tuning_bit_for_bit(run: Run, name: str) -> None:
    """k = 1: nothing to replay, so every method is the lower bound (docs/protocol.md)."""
    alone: dict[str, Any] = {"data.order": ["shape"], "model.dropout": 0.1}
    found, plain = run(CONFIGS[name], **alone), run(CONFIGS["finetune"], **alone)
    assert journal(found, "events") == []
    if name in SEVERAL_ADAPTERS:
        first = {n: found.adapter[n.replace("adapter ", "adapter/0 ")] for n in plain.adapter}
        found = replace(found, adapter=first)
    assert same_training(found, plain)


@pytest.mark.parametrize("name", sorted(CONFIGS.keys() - {"mtl"} - OWN_FIRST_TASK))
def test_first_task_is_learned_alike(run: Run, name: str) -> None:
    """Also in a sequence the first task sees no memory."""
    plain, found = updates(run(CONFIGS["finetune"])), updates(run(CONFIGS[name]))
    assert found[:4] == plain[:4]
    assert {update[0] for update in found[:4]} == {"colour"}
    assert (found[4:] == plain[4:]) == (name == "finetune")


# ---- settings that make two methods equal


NONE = CONFIGS["forever none"]
END_ONLY = {**FOREVER, "days": "end_only", "consolidation_epochs": 0}
IMPORTANCE = {**FOREVER, "regularizer": "intensity_importance"}
STEPS = {**NONE, "clock": "steps", "days": [1, 2, 3]}
ONCE = {"name": "fixed_interval", "day_steps": 24}
FINETUNE = CONFIGS["finetune"]
NEUTRAL: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing replayed": (END_ONLY, FINETUNE),
    "importance but nothing replayed": ({**IMPORTANCE, **END_ONLY}, FINETUNE),
    "J = 0": ({**ONCE, "consolidation_epochs": 0}, FINETUNE),
    "beta 0": ({**FOREVER, "beta": 0}, NONE),
    "beta 0 with importance": ({**IMPORTANCE, "beta": 0}, NONE),
    "gamma 0": ({**IMPORTANCE, "gamma": 0}, CONFIGS["forever importance"]),
    "the list written out": ({**FOREVER, "days": [1, 2, 4, 7, 15, 30]}, FOREVER),
    "S > T": ({**NONE, "day_steps": 5}, {**NONE, "days": "end_only"}),
    "multiples of I": (STEPS, CONFIGS["fixed_interval"]),
    "end only": ({**FOREVER, "beta": 0, "days": "end_only"}, ONCE),
    "looking back changes nothing": ({"name": "finetune", "probe_every": 1}, FINETUNE),
    "lambda 0": ({"name": "ewc", "strength": 0}, FINETUNE),
    "T 0 with replay": ({"name": "migu", "masked": 0}, CONFIGS["mix_replay"]),
    "T 0": ({"name": "migu", "masked": 0, "replay": False}, FINETUNE),
    "blocks longer than the task": ({"name": "recurrent_kif", "inner_steps": 5}, FINETUNE),
}


@pytest.mark.parametrize(("a", "b"), NEUTRAL.values(), ids=NEUTRAL)
def test_neutral_settings(run: Run, a: dict[str, Any], b: dict[str, Any]) -> None:
    assert same_training(run(a), run(b))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("forever", "finetune"), ("forever", "forever none"),
        ("forever none", "forever importance"), ("forever", "forever both"),
        ("forever importance", "forever both"), ("forever", "forever steps"),
        ("forever none", "fixed_interval"), ("mix_replay", "finetune"), ("mtl", "finetune"),
        ("forever matched", "forever end_only"), ("forever explicit", "forever"),
    ],
)  # fmt: skip
def test_other_settings_differ(run: Run, a: str, b: str) -> None:
    """The comparisons above can fail."""
    strong: dict[str, Any] = {} if a in ("mix_replay", "mtl") else {"beta": 1.0}
    left, right = (CONFIGS[name] | (strong if "forever" in name else {}) for name in (a, b))
    assert not same_training(run(left), run(right))


@pytest.mark.parametrize(
    "name", [n for n in CONFIGS if n.startswith(("forever", "fixed", "recurrent", "aim", "vbm"))]
)
def test_without_memory_nothing_is_replayed(run: Run, name: str) -> None:
    """M empty is the lower bound."""
    nothing: dict[str, Any] = {"memory.fraction": 0}
    found = run(CONFIGS[name], **nothing)
    assert same_training(found, run(CONFIGS["finetune"], **nothing))
    assert {*found.result["rows_seen"]} == {"task"}


def test_sapt_without_memory_holds_no_prompts(run: Run) -> None:
    """The sum over past tasks has no examples, which is no weight on it."""
    assert same_training(
        run(CONFIGS["sapt"], **{"memory.fraction": 0}),
        run(CONFIGS["sapt"] | {"memory_weight": 0.0}),
    )


@pytest.mark.parametrize(
    "name", sorted(METHODS.keys() - {"finetune", "mtl", "mix_replay", "fixed_interval", "forever"})
)
def test_a_baseline_is_not_another_one(run: Run, name: str) -> None:
    """None of them is the lower bound, MixReplay, or any other row of the table."""
    mine = updates(run(CONFIGS[name]))
    assert all(mine != updates(run(other)) for key, other in CONFIGS.items() if key != name)


# ---- what belongs to single methods


def test_strength_of_forever(run: Run) -> None:
    """Gamma 0 replays at beta_base, and so does the first event, whose ratio is one."""
    assert {event["beta"] for event in journal(run({**FOREVER, "gamma": 0}), "events")} == {1e-3}
    events = journal(run(FOREVER), "events")
    first = [event for event in events if event["day"] == 1]
    assert [(event["task"], event["step"]) for event in first] == [("shape", 1), ("weight", 1)]
    assert all(event["ratio"] == pytest.approx(1, abs=1e-9) for event in first)
    assert all(event["beta"] == pytest.approx(1e-3, rel=1e-8) for event in first)
    assert len({event["beta"] for event in events}) > 1


def test_joint_training_scores_all_tasks_once(run: Run) -> None:
    result = run(CONFIGS["mtl"]).result
    assert result["stages"] == ["joint"]
    scores = [score for row in result["matrix"] for score in row]
    assert len(scores) == 3
    assert result["bwt"] is None
    assert result["op"] == pytest.approx(sum(scores) / 3)
    assert result["updates"] == {"task": 2 * 6}  # two epochs over 24 rows in batches of 4


def test_importance_is_fisher_information_scaled_to_mean_one(
    small_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The running mean over tasks of the mean squared gradient of single rows, by a loop."""
    fishers: list[torch.Tensor] = []
    end = Forever.end_task

    def watch(method: Forever, learner: Learner, task: Task) -> None:
        end(method, learner, task)
        gradient = learner.parameters.grad
        assert not gradient.any()  # nothing is left behind
        learner.backbone.model.eval()
        total = torch.zeros_like(gradient)
        for example in task.train:
            row = learner.encoder.encode(example)
            ids = torch.tensor([row.prompt + row.answer])
            labels = torch.tensor([(-100,) * len(row.prompt) + row.answer])
            learner.backbone.model(input_ids=ids, labels=labels).loss.backward()
            total += gradient**2
            gradient.zero_()
        fishers.append(total / len(task.train))
        mean, weights = torch.stack(fishers).mean(0), method.tensors["weights"]
        torch.testing.assert_close(method.tensors["fisher"], mean, rtol=1e-3, atol=1e-9)
        torch.testing.assert_close(weights, mean / mean.mean(), rtol=1e-3, atol=1e-5)

    monkeypatch.setattr(Forever, "end_task", watch)
    execute(with_method(small_config, CONFIGS["forever importance"]), tmp_path)
    assert len(fishers) == 3


def test_finished_run_is_left_as_it_is(small_config: RunConfig, tmp_path: Any) -> None:
    first = execute(small_config, tmp_path)
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert execute(small_config, tmp_path) == first
    assert run_local(small_config, tmp_path, resume=True) == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == stamps


# ---- packed batches


@pytest.mark.parametrize("name", CONFIGS)
def test_packed_and_padded_examples_have_one_loss_and_one_gradient(
    small_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """In every update of a run, with the terms that routers add up on the way; the packed ones
    attend with a mask, and in rows."""
    honest = step_module.answer_logits

    def computed(learner: Learner, packed: bool, *given: Any) -> tuple[Any, torch.Tensor]:
        learner.packed = packed
        logits, targets = honest(learner, *given)
        loss = torch.nn.functional.cross_entropy(logits, targets, reduction="sum")
        trained = [p for p in learner.backbone.model.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(loss, trained, retain_graph=True, allow_unused=True)
        terms = [logits.detach(), *(g for g in gradients if g is not None)]
        for _, bank in lora.banks(learner.backbone.model):
            router: Any = bank.router
            terms += [router.balance.detach(), router.contrast.detach()] if router else []
        return (logits, targets), torch.cat([term.flatten() for term in terms])

    def both(learner: Learner, *given: Any) -> Any:
        if not torch.is_grad_enabled():  # a probe: no update
            return honest(learner, *given)
        _, padded = computed(learner, False, *given)
        with monkeypatch.context() as patch:
            patch.setattr(collation, "_mask", lambda *_: None)
            _, by_rows = computed(learner, True, *given)
        answer, packed = computed(learner, True, *given)
        for gradient in (by_rows, packed):
            assert (gradient - padded).norm() <= 1e-5 * padded.norm()
        return answer

    monkeypatch.setattr(step_module, "answer_logits", both)
    monkeypatch.setattr(decoding, "sample", canned_sample)
    values = small_config.model_dump(mode="json") | {"method": CONFIGS[name]}
    execute(RunConfig.parse(values), tmp_path / "run")
