"""Sweeps: pure data, stable keys, differences only."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from forever.config.methods import METHOD_CONFIGS
from forever.config.orders import ORDERS
from forever.config.run import RunConfig
from forever.errors import InputError
from forever.launch.checks import refused
from forever.sweeps.files import load_sweep, shipped_sweeps
from forever.sweeps.named_runs import SCALES, named_run, scale_of
from forever.sweeps.sweep import Sweep, read_manifest, slug

SWEEPS = [name for name, sweep in shipped_sweeps().items() if not sweep.is_search]
ON_ANY_METHOD = (
    "main_results", "baselines", "backbones", "full_finetuning", "long_sequence", "memory_size",
    "model_day", "training_time", "replay_loss",
)  # fmt: skip


def named_sweep(name: str, base: RunConfig, seeds: tuple[int, ...] | None = (0,)) -> Sweep:
    return load_sweep(name).expand(base, seeds)


def components(base: RunConfig, seeds: tuple[int, ...] = (0,)) -> Sweep:
    return named_sweep("components", base, seeds)


def variants_of(sweep: Sweep) -> list[str]:
    return [trial.variant for trial in sweep.trials()]


def listed(folder: Path, key: str = "variant") -> list[Any]:
    return [trial[key] for trial in read_manifest(folder)["trials"]]


# ---- runs and their keys


def test_keys_are_unique_and_stable(base_config: RunConfig) -> None:
    sweep = components(base_config, (0, 1, 2))
    keys = [trial.key for trial in sweep.trials()]
    assert len(set(keys)) == len(keys) == 3 * len(sweep.variants)
    assert all(re.fullmatch(r"[\w.-]+", key) for key in keys)
    assert (slug("+IAR&PIR"), slug("-IAR"), slug("a/b c")) == (
        "plus_IAR_and_PIR", "minus_IAR", "a_b_c",
    )  # fmt: skip
    # A sweep that is extended, or whose data lie elsewhere, repeats nothing.
    elsewhere = base_config.override({"data.root": "/somewhere/else"})
    extended = components(elsewhere, (0, 1, 2, 3)).trials()
    assert [trial.key for trial in extended][: len(keys)] == keys


def test_a_variant_that_does_not_fit_names_itself(base_config: RunConfig) -> None:
    sweep = Sweep("s", base_config, {"odd": {"method.dayz": "uniform"}})
    with pytest.raises(InputError, match=r"'odd'.*method\.days"):
        sweep.trials()


def test_what_is_refused_stops_a_sweep_that_has_nothing_else(
    base_config: RunConfig, tmp_path: Path
) -> None:
    nowhere = base_config.override({"data.root": str(tmp_path / "nowhere")})
    trials = Sweep("toys", nowhere, {"base": {}, "none": {"method.regularizer": "none"}}).trials()
    keys = [trial.key for trial in trials]
    with pytest.raises(InputError, match="nowhere"):
        refused(trials)
    assert list(refused(trials, others=True)) == keys
    assert list(refused([*trials, *Sweep("toys", base_config, {"fine": {}}).trials()])) == keys


# ---- the shipped sweeps


@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_of_the_paper_runs_on_every_benchmark_and_method(name: str) -> None:
    """Its reference is among its variants, and what is called FOREVER is FOREVER."""
    for base in ("long/4/forever", "standard/1/forever"):
        assert named_sweep(name, named_run(base)).trials()
    sweep = named_sweep(name, named_run("superni/7/forever"), None)
    assert len(sweep.trials()) == len(sweep.variants) * len(sweep.seeds) * max(1, len(sweep.orders))
    assert {sweep.reference, *sweep.paper} <= set(sweep.variants)
    if name in ON_ANY_METHOD:
        for trial in named_sweep(name, named_run("mini/finetune")).trials():
            if trial.variant.startswith("forever"):
                assert trial.config.method.name == "forever"


@pytest.mark.parametrize("scale", ["mini", "cpu"])
def test_a_small_run_says_which_of_the_papers_variants_it_stands_for(scale: str) -> None:
    """Two of the paper's values can fall together; then the later one is meant, since it is nearer
    to the base's."""
    sweep = named_sweep("warmup_window", named_run(SCALES[scale]))
    assert sweep.reference == "S = 2"
    assert (sweep.paper["S = 2"], sweep.paper["S = 8"]) == ("S = 24", "S = 96")
    sizes = named_sweep("memory_size", named_run(SCALES[scale]))
    assert sizes.paper[sizes.reference] == "forever 2 %"


@pytest.mark.parametrize("base", SCALES.values())
@pytest.mark.parametrize("name", ["main_results", "long_sequence"])
def test_sizes_that_are_asked_for_survive_the_orders(base: str, name: str) -> None:
    asked = {"train_rows": 48, "test_rows": 20, "validation": 0.25}
    run = named_run(base).override({f"data.{key}": value for key, value in asked.items()})
    for trial in named_sweep(name, run).trials():
        assert asked.items() <= trial.config.data.model_dump().items()


@pytest.mark.parametrize(
    ("scale", "changes", "expected"),
    [
        *((scale, {}, scale) for scale in SCALES),
        *((scale, {"optim.epochs": 1}, scale) for scale in SCALES),
        ("cpu", {"data.train_rows": 48}, "cpu"),
        ("paper", {"data.train_rows": 500}, "other"),
        ("paper", {"data.train_rows": 1000}, "paper"),
        ("paper", {"data.test_rows": 99}, "other"),
        ("paper", {"data.validation": 0.2}, "other"),
        ("paper", {"data.order": ["task363", "task875"]}, "other"),
        ("paper", {"data.benchmark": "mine", "data.order": ["a", "b"]}, "other"),
    ],
)
def test_the_scale_is_that_of_the_data(scale: str, changes: dict[str, Any], expected: str) -> None:
    assert scale_of(named_run(SCALES[scale]).override(changes)) == expected


def test_the_scale_is_that_of_the_examples_that_tasks_had() -> None:
    """A result says it, whatever the configuration limits."""
    tasks = ORDERS["standard"]["1"]
    run = named_run("standard/1/forever")
    for train, test, expected in (
        (1000, 7000, "paper"),
        (1001, 7000, "other"),  # more than the paper's
        (999, 7000, "other"),
        (1000, 499, "other"),  # fewer than 500 a class
    ):
        rows = {name: {"train": train, "test": test} for name in tasks}
        assert scale_of(run, rows) == expected
    assert scale_of(named_run(SCALES["cpu"]), rows) == "cpu"


def test_baselines_keep_the_base_as_it_is() -> None:
    """Its own method is not touched; S holds for all that have one; only runs of a scale get that
    scale's settings."""

    def methods(base: str, **changes: Any) -> dict[str, dict[str, Any]]:
        run = named_run(base).override({key.replace("_", ".", 1): v for key, v in changes.items()})
        trials = named_sweep("baselines", run).trials()
        return {trial.variant: trial.config.method.model_dump() for trial in trials}

    mini = methods("mini/forever", method_day_steps=8, method_gamma=0.5)
    assert (mini["forever"]["day_steps"], mini["forever"]["gamma"]) == (8, 0.5)
    assert {mini[name]["day_steps"] for name in ("vbm", "fixed_interval")} == {8}
    assert mini["ssr"]["max_tokens"] == 320
    for name, method in methods(SCALES["cpu"]).items():
        if name in METHOD_CONFIGS:
            assert method == named_run(f"cpu/superni/7/{name}").method.model_dump()
    paper = methods("superni/7/forever", data_train_rows=500)
    assert (paper["ssr"]["max_tokens"], paper["vbm"]["day_steps"]) == (2048, 24)
    assert methods("mini/finetune")["vbm"]["day_steps"] == 2


# ---- selections and manifests


def test_a_selection_brings_what_it_is_compared_with(base_config: RunConfig) -> None:
    whole = components(base_config)
    some = whole.only(["-IAR", "+FIR"])
    assert variants_of(some) == ["base", "+FIR", "-IAR"]
    assert all(trial in whole.trials() for trial in some.trials())
    assert whole.only([]) == whole
    assert variants_of(whole.only(["base"])) == ["base"]
    sizes = named_sweep("memory_size", named_run("superni/7/forever"))
    assert variants_of(sizes.only(["vbm 10 %"])) == ["forever 10 %", "vbm 10 %"]
    # What is not chosen need not fit the base.
    demo = load_sweep("demo").expand(named_run("mini/ewc"), only=["mtl"])
    assert variants_of(demo) == ["base", "mtl"]
    with pytest.raises(InputError, match=r"method\.days"):
        load_sweep("demo").expand(named_run("mini/ewc"), only=["+FIR"])
    with pytest.raises(InputError, match=r"'\+FIR'"):
        whole.only(["+FIRE"])


def test_a_manifest_is_extended(base_config: RunConfig, tmp_path: Path) -> None:
    """Variants of a later selection stand where the sweep has them, another seed behind."""
    whole = components(base_config)
    for names, expected in (
        (["-IAR"], ["base", "-IAR"]),
        (["+RR"], ["base", "+RR", "-IAR"]),
        ([], [*whole.variants]),
    ):
        whole.only(names).write_manifest(tmp_path)
        assert listed(tmp_path) == expected
    for _ in range(2):
        components(base_config, (1,)).write_manifest(tmp_path)
    assert listed(tmp_path, "seed") == [seed for seed in (0, 1) for _ in whole.variants]
    assert listed(tmp_path) == [*whole.variants] * 2
    Sweep("s", base_config, {"b": {}}, references={"b": "a"}).write_manifest(tmp_path)
    Sweep("s", base_config, {"c": {}}, references={"c": "a"}).write_manifest(tmp_path)
    content = read_manifest(tmp_path)
    assert content.pop("references") == {"random times": "+STC", "b": "a", "c": "a"}


def test_a_folder_without_a_whole_manifest_is_refused(
    base_config: RunConfig, tmp_path: Path
) -> None:
    components(base_config).write_manifest(tmp_path)
    path = tmp_path / "sweep.json"
    content = json.loads(path.read_text("utf-8"))
    for text in ('{"name": "fai', json.dumps({**content, "schema_version": 10**6})):
        path.write_text(text, "utf-8")
        with pytest.raises(InputError, match=re.escape(str(path))):
            read_manifest(tmp_path)
    path.unlink()
    with pytest.raises(InputError, match=re.escape(str(tmp_path))):
        read_manifest(tmp_path)
