"""One table of methods, each run on the toy benchmark: what must hold for all of them, and which of
them are equal.

A new method is added to CONFIGS and is then held to the same rules.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from helpers import CONFIGS, FOREVER, Outcome, canned_sample, execute, outcome

from forever.config.run import RunConfig
from forever.data.benchmarks import load_benchmark
from forever.evaluation import decoding
from forever.launch.local import run_local
from forever.methods.registry import METHODS, build_method
from forever.replay.clock import CLOCKS
from forever.replay.schedules import SCHEDULES
from forever.runs.session import Session
from forever.training import loop
from forever.training import step as step_module
from forever.training.learner import Learner
from forever.training.memory import Memory
from forever.training.step import optimizer_step
from forever.training.steps import Step, StepRecord

# These train other things in the first task than one plain adapter on plain rows; their neutral
# settings are tested where their own invariants are.
OWN_FIRST_TASK = {"olora squares", "moelora", "moelora one expert a token"}
# These have an adapter a task, so what is saved is no single one.
SEVERAL_ADAPTERS = {"sapt", "sapt detached"}
Run = Callable[..., Outcome]


@pytest.fixture(scope="module")
def run(small_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """The outcome of a method on the toy benchmark; each configuration is run once unless
    `again`."""
    done: dict[str, Outcome] = {}
    patch = pytest.MonkeyPatch()
    patch.setattr(decoding, "sample", canned_sample)

    def outcome_of(method: dict[str, Any], again: bool = False, **changes: Any) -> Outcome:
        values = small_config.override(changes).model_dump(mode="json") | {"method": method}
        config = RunConfig.parse(values)
        if again or config.fingerprint() not in done:
            path = tmp_path_factory.mktemp("run")
            execute(config, path)
            done[config.fingerprint()] = outcome(path)
        return done[config.fingerprint()]

    yield outcome_of
    patch.undo()


def training(found: Outcome) -> tuple[Any, ...]:
    """What training did, without the clock's readings that only some methods note in their
    lines."""
    fields = [
        "task",
        "step",
        "update",
        "epoch",
        "kind",
        "loss",
        "penalty",
        "update_norm",
        "lr",
        "rows",
        "tokens",
    ]
    steps = [yaml.safe_load(line) for line in found.files["steps.jsonl"].splitlines()]
    return [tuple(s[f] for f in fields) for s in steps], {
        n: t.numpy().tobytes() for n, t in found.adapter.items()
    }


def same_training(a: Outcome, b: Outcome) -> bool:
    return training(a) == training(b) and a.result["matrix"] == b.result["matrix"]


def events(found: Outcome) -> list[dict[str, Any]]:
    return [yaml.safe_load(line) for line in found.files["events.jsonl"].splitlines()]


# ---- all methods


def test_every_method_and_slot_is_in_the_table() -> None:
    assert {c["name"] for c in CONFIGS.values()} >= METHODS.keys()
    assert {c.get("clock", "model") for c in CONFIGS.values()} == CLOCKS.keys()
    named = {
        c.get("days", "ebbinghaus") for c in CONFIGS.values() if isinstance(c.get("days", ""), str)
    }
    assert named == SCHEDULES.keys()
    regularizers = {c.get("regularizer", "intensity") for c in CONFIGS.values()}
    assert regularizers == {"none", "intensity", "importance", "intensity_importance"}


@pytest.mark.parametrize("name", CONFIGS)
def test_built_from_configuration_and_back(name: str) -> None:
    config = RunConfig.parse({"method": CONFIGS[name]})
    again = RunConfig.parse(yaml.safe_load(yaml.safe_dump(config.model_dump(mode="json"))))
    assert again == config
    method = build_method(config.method)
    assert type(method) is METHODS[CONFIGS[name]["name"]]
    assert method.config == config.method
    # Constructors store settings, work starts with training.
    assert method.tensors == method.state == {}
    assert type(method).card.title


@pytest.mark.parametrize("name", CONFIGS)
def test_repeats_bit_for_bit_and_learns_something(run: Run, name: str) -> None:
    first, second = run(CONFIGS[name]), run(CONFIGS[name], again=True)
    assert first.differences(second) == []
    assert all(t.any() for name, t in first.adapter.items() if "shift" not in name)


@pytest.mark.parametrize("name", CONFIGS)
def test_memory_rows_stay_within_the_quota(
    name: str, small_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches hold rows of the task and at most floor(0.2 * 8) = 1 row of each earlier one, the
    same every time."""
    seen: list[tuple[str, str, str]] = []

    def watch(learner: Learner, method: Any, step: Step) -> StepRecord:
        assert learner.task is not None
        seen.extend((learner.task.name, step.kind, e.id.split("/")[0]) for e in step.batch.examples)
        others = {e.id for e in step.batch.examples if not e.id.startswith(f"{learner.task.name}/")}
        assert others <= {e.id for e in learner.memory.examples}
        assert (learner.stage > 0) <= len(learner.memory) <= learner.stage  # SSR may write fewer
        return honest(learner, method, step)

    honest = optimizer_step
    if name != "mtl":  # which sees all rows at once
        monkeypatch.setattr(step_module, "optimizer_step", watch)
        monkeypatch.setattr(decoding, "sample", canned_sample)
        execute(
            RunConfig.parse(small_config.model_dump(mode="json") | {"method": CONFIGS[name]}),
            tmp_path,
        )
    order = small_config.data.order
    assert {task for task, _, _ in seen} == (set(order) if name != "mtl" else set())
    for task, kind, origin in seen:
        assert order.index(origin) <= order.index(task)
        assert (origin != task) if kind in ("replay", "consolidation") else True


@pytest.mark.parametrize("name", [n for n in CONFIGS if n.startswith(("forever", "fixed"))])
def test_events_are_whole_passes_over_the_memory(
    run: Run, name: str, small_config: RunConfig
) -> None:
    """Counted through rows of the journal."""
    result = run(CONFIGS[name]).result
    benchmark = load_benchmark(small_config.data)
    memory, kept = (
        Memory(small_config.memory.fraction, small_config.optim.batch_size, small_config.seed),
        [0],
    )
    for task in benchmark.tasks:
        memory.add(task)
        kept.append(len(memory))
    assert kept == [0, 1, 2, 3]  # floor(0.2 * 8) rows a task
    passes = Counter[str]()
    for event in events(run(CONFIGS[name])):
        stage = result["stages"].index(event["task"])
        assert event["rows"] % kept[stage] == 0
        passes[event["task"]] += event["rows"] // kept[stage]
    assert passes.keys() <= set(result["stages"][1:])
    side = sum(passes[task] * kept[result["stages"].index(task)] for task in passes)
    assert side == sum(n for kind, n in result["rows_seen"].items() if kind != "task")


@pytest.mark.parametrize("name", [n for n in CONFIGS if n not in OWN_FIRST_TASK])
def test_one_task_is_fine_tuning_bit_for_bit(run: Run, name: str) -> None:
    """k = 1: nothing to replay, so every method is the lower bound (docs/protocol.md)."""
    alone: dict[str, Any] = {"data.order": ["shape"], "model.dropout": 0.1}
    found, plain = run(CONFIGS[name], **alone), run(CONFIGS["finetune"], **alone)
    if name in SEVERAL_ADAPTERS:
        found = replace(
            found,
            adapter={n.replace("adapter/0 ", "adapter "): t for n, t in found.adapter.items()},
        )
        found = replace(found, adapter={n: found.adapter[n] for n in plain.adapter})
    assert same_training(found, plain)
    assert events(run(CONFIGS[name], **alone)) == []


@pytest.mark.parametrize("name", sorted(CONFIGS.keys() - {"mtl"} - OWN_FIRST_TASK))
def test_first_task_is_learned_alike(run: Run, name: str) -> None:
    """Also in a sequence the first task sees no memory."""
    plain = training(run(CONFIGS["finetune"]))[0]
    found = training(run(CONFIGS[name]))[0]
    assert found[:4] == plain[:4]
    assert {s[0] for s in found[:4]} == {"colour"}
    assert (found[4:] == plain[4:]) == (name == "finetune")


# ---- settings that make two methods equal


NONE, END_ONLY = (
    CONFIGS["forever none"],
    {**FOREVER, "days": "end_only", "consolidation_epochs": 0},
)
IMPORTANCE = {**FOREVER, "regularizer": "intensity_importance"}
STEPS = {**NONE, "clock": "steps", "days": [1, 2, 3]}
ONCE = {"name": "fixed_interval", "warmup_steps": 24}
FINETUNE = CONFIGS["finetune"]
NEUTRAL: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing replayed": (END_ONLY, FINETUNE),
    "importance but nothing replayed": ({**IMPORTANCE, **END_ONLY}, FINETUNE),
    "J = 0": ({**ONCE, "consolidation_epochs": 0}, FINETUNE),
    "beta 0": ({**FOREVER, "beta": 0}, NONE),
    "beta 0 with importance": ({**IMPORTANCE, "beta": 0}, NONE),
    "gamma 0": ({**IMPORTANCE, "gamma": 0}, CONFIGS["forever importance"]),
    "the list written out": ({**FOREVER, "days": [1, 2, 4, 7, 15, 30]}, FOREVER),
    "S > T": ({**NONE, "warmup_steps": 5}, {**NONE, "days": "end_only"}),
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
    left, right = ({**CONFIGS[n], **(strong if "forever" in n else {})} for n in (a, b))
    assert not same_training(run(left), run(right))


@pytest.mark.parametrize(
    "name", [n for n in CONFIGS if n.startswith(("forever", "fixed", "recurrent", "aim", "vbm"))]
)
def test_without_memory_nothing_is_replayed(run: Run, name: str) -> None:
    """M empty is the lower bound."""
    nothing: dict[str, Any] = {"memory.fraction": 0}
    if name not in OWN_FIRST_TASK:
        assert same_training(run(CONFIGS[name], **nothing), run(CONFIGS["finetune"], **nothing))
    assert {*run(CONFIGS[name], **nothing).result["rows_seen"]} == {"task"}


@pytest.mark.parametrize(
    "name", sorted(METHODS.keys() - {"finetune", "mtl", "mix_replay", "fixed_interval", "forever"})
)
def test_a_baseline_is_not_another_one(run: Run, name: str) -> None:
    """None of them is the lower bound, MixReplay, or any other row of the table."""
    mine = training(run(CONFIGS[name]))[0]
    assert all(mine != training(run(other))[0] for key, other in CONFIGS.items() if key != name)


def test_gamma_zero_replays_at_beta_base(run: Run) -> None:
    betas = {e["beta"] for e in events(run({**FOREVER, "gamma": 0}))}
    assert betas == {1e-3}
    assert len({e["beta"] for e in events(run(FOREVER))}) > 1


def test_first_event_has_ratio_one(run: Run) -> None:
    for event in events(run(FOREVER)):
        if event["day"] == 1:
            assert event["step"] == 1
            assert event["ratio"] == pytest.approx(1, abs=1e-9)
            assert event["beta"] == pytest.approx(1e-3, rel=1e-8)


# ---- what belongs to single methods


def test_joint_training_scores_all_tasks_once(run: Run) -> None:
    result = run(CONFIGS["mtl"]).result
    assert result["stages"] == ["joint"]
    assert [len(row) for row in result["matrix"]] == [1, 1, 1]
    assert all(value is not None for row in result["matrix"] for value in row)
    assert result["bwt"] is None
    assert result["op"] == pytest.approx(sum(row[0] for row in result["matrix"]) / 3)
    assert result["updates"] == {"task": 2 * 6}  # two epochs over 24 rows in batches of 4


def test_importance_is_fisher_information_scaled_to_mean_one(
    small_config: RunConfig, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Running mean over tasks of the mean squared gradient of single rows against a loop
    written here."""
    found: list[dict[str, Any]] = []
    expected: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        end = Session.end_training

        def watch(session: Session) -> None:
            learner: Any = session.learner
            assert not learner.parameters.grad.any()  # nothing is left behind
            learner.backbone.model.eval()
            total = torch.zeros_like(learner.parameters.flat.data)
            for example in learner.task.train:
                row = learner.encoder.encode(example)
                ids = torch.tensor([row.prompt + row.answer])
                labels = torch.tensor([(-100,) * len(row.prompt) + row.answer])
                learner.backbone.model(input_ids=ids, labels=labels).loss.backward()
                total += learner.parameters.grad**2
                learner.parameters.grad.zero_()
            expected.append(total / len(learner.task.train))
            found.append({name: t.clone() for name, t in session.method.tensors.items()})
            end(session)

        patch.setattr(loop.Session, "end_training", watch)
        config = RunConfig.parse(
            small_config.model_dump(mode="json") | {"method": CONFIGS["forever importance"]}
        )
        execute(config, tmp_path_factory.mktemp("fisher"))
    assert len(found) == 3
    for stage, tensors in enumerate(found):
        mean = torch.stack(expected[: stage + 1]).mean(0)
        torch.testing.assert_close(tensors["fisher"], mean, rtol=1e-3, atol=1e-9)
        torch.testing.assert_close(tensors["weights"], mean / mean.mean(), rtol=1e-3, atol=1e-5)
        assert tensors["weights"].mean().item() == pytest.approx(1, rel=1e-4)


def test_finished_run_is_left_as_it_is(small_config: RunConfig, tmp_path: Any) -> None:
    first = execute(small_config, tmp_path)
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert execute(small_config, tmp_path) == first
    assert run_local(small_config, tmp_path, resume=True) == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == stamps
