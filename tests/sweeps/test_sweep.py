"""Sweeps: pure data, stable keys, differences only."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from forever.config.run import RunConfig
from forever.errors import InputError
from forever.runs.directory import RunDirectory
from forever.sweeps.checks import refused
from forever.sweeps.files import load_sweep, shipped_sweeps
from forever.sweeps.named_runs import SCALES, named_run, scale_of
from forever.sweeps.sweep import Sweep, read_manifest, slug

SWEEPS = [name for name, sweep in shipped_sweeps().items() if not sweep.is_search]
VARIANTS = {
    "base": {},
    "+FIR": {"method.days": "fixed_interval"},
    "+RR": {"method.days": "decreasing"},
    "+ER": {"method.days": "end_only", "method.consolidation_epochs": "matched"},
    "+STC": {"method.clock": "steps"},
    "-IAR": {"method.regularizer": "none"},
    "+PIR": {"method.regularizer": "importance"},
    "+IAR&PIR": {"method.regularizer": "intensity_importance"},
}


def named_sweep(name: str, base: RunConfig, seeds: tuple[int, ...] | None = None) -> Sweep:
    return load_sweep(name).expand(base, seeds)


def components(base: RunConfig, seeds: tuple[int, ...] = (0,)) -> Sweep:
    return named_sweep("components", base, seeds)


def test_keys_are_unique_and_stable(base_config: RunConfig) -> None:
    sweep = components(base_config, (0, 1, 2))
    keys = [trial.key for trial in sweep.trials()]
    assert len(set(keys)) == len(keys) == 24
    assert keys == [trial.key for trial in components(base_config, (0, 1, 2)).trials()]
    more = [trial.key for trial in components(base_config, (0, 1, 2, 3)).trials()]
    assert more[:24] == keys  # a sweep that is extended repeats nothing
    elsewhere = base_config.override({"data.root": "/somewhere/else"})
    assert [trial.key for trial in components(elsewhere, (0, 1, 2)).trials()] == keys


def test_an_ablation_is_a_difference_and_nothing_else(base_config: RunConfig) -> None:
    trials = components(base_config).trials()
    assert [trial.variant for trial in trials] == [*VARIANTS]
    for trial in trials:
        difference = VARIANTS[trial.variant]
        assert trial.config == base_config.override(difference)
        changed = {
            k
            for k, v in trial.config.method.model_dump().items()
            if v != base_config.method.model_dump()[k]
        }
        assert changed == {key.removeprefix("method.") for key in difference}
        assert trial.config.model_copy(update={"method": base_config.method}) == base_config


ON_ANY_METHOD = (
    "main_results", "baselines", "backbones", "full_finetuning", "long_sequence", "memory_size",
    "model_day", "training_time", "replay_loss",
)  # fmt: skip


@pytest.mark.parametrize(
    "base", ["mini/forever", "cpu/superni/7/forever", "long/4/forever", "standard/1/forever"]
)
def test_every_named_sweep_expands_on_every_benchmark(base: str) -> None:
    for name in SWEEPS:
        assert named_sweep(name, named_run(base), (0,)).trials()


@pytest.mark.parametrize("name", SWEEPS)
def test_sweeps_of_the_paper(name: str) -> None:
    """On the paper's own run no two variants are the same, each is a difference, and its reference
    is among them."""
    base = named_run("superni/7/forever")
    sweep = named_sweep(name, base)
    trials = sweep.trials()
    assert len({trial.config.fingerprint() for trial in trials}) == len(trials)
    assert len(trials) == len(sweep.variants) * len(sweep.seeds) * max(1, len(sweep.orders))
    assert sweep.reference in sweep.variants
    assert set(sweep.paper) <= set(sweep.variants)


@pytest.mark.parametrize(("base", "first"), [("mini/forever", 4), ("cpu/superni/7/forever", 2)])
def test_a_small_run_says_which_of_the_papers_variants_it_stands_for(base: str, first: int) -> None:
    """Two of the paper's values can fall together; then the later one is meant, since it is nearer
    to the base's."""
    sweep = named_sweep("warmup_window", named_run(base))
    assert sweep.paper[f"S = {first}"] == "S = 24"
    assert sweep.reference == f"S = {first}"
    assert sweep.paper[f"S = {4 * first}"] == "S = 96"
    sizes = named_sweep("memory_size", named_run(base))
    assert sizes.paper[sizes.reference] == "forever 2 %"


@pytest.mark.parametrize("scale", ["cpu/superni/7/forever", "superni/7/forever", "mini/forever"])
@pytest.mark.parametrize(
    "name", ["main_results", "model_day", "full_finetuning", "backbones", "long_sequence"]
)
def test_sizes_that_are_asked_for_survive_the_orders(scale: str, name: str) -> None:
    asked = {"train_rows": 48, "test_rows": 20, "validation": 0.25}
    base = named_run(scale).override({f"data.{key}": value for key, value in asked.items()})
    for trial in named_sweep(name, base, (0,)).trials():
        assert asked.items() <= trial.config.data.model_dump().items()


@pytest.mark.parametrize("rows", [50, 200])
def test_sizes_do_not_change_the_tasks(rows: int) -> None:
    """Two cores have four tasks of SuperNI however many rows, GPUs all of them however few."""

    def tasks(base: str) -> list[Any]:
        run = named_run(base).override({"data.train_rows": rows})
        return [trial.config.data.order for trial in named_sweep("model_day", run, (0,)).trials()][
            ::2
        ]

    assert tasks(SCALES["cpu"]) == [*CPU_TASKS["superni"].values()]
    assert tasks(SCALES["paper"]) == ["7", "8"]


def test_the_scale_is_that_of_the_data() -> None:
    for name, base in SCALES.items():
        assert (
            scale_of(named_run(base))
            == scale_of(named_run(base).override({"optim.epochs": 1}))
            == name
        )
    assert scale_of(named_run(SCALES["cpu"]).override({"data.train_rows": 48})) == "cpu"
    for key, value in {
        "data.train_rows": 500,
        "data.validation": 0.2,
        "data.order": ["task363", "task875"],
    }.items():
        assert scale_of(named_run(SCALES["paper"]).override({key: value})) == "other"
    own = {"data.benchmark": "mine", "data.order": ["a", "b"]}
    assert scale_of(named_run(SCALES["paper"]).override(own)) == "other"


def test_what_is_called_forever_is_forever() -> None:
    for name in SWEEPS:
        trials = (
            named_sweep(name, named_run("mini/finetune"), (0,)).trials()
            if name in ON_ANY_METHOD
            else []
        )
        assert all(
            t.config.method.name == "forever" for t in trials if t.variant.startswith("forever")
        )


def test_orders_and_seeds() -> None:
    where = {order: {"data.order": order} for order in ("4", "5")}
    sweep = Sweep("s", named_run("long/4/finetune"), {"base": {}}, seeds=(0, 1), orders=where)
    found = [(t.seed, t.order, t.config.data.order, t.config.seed) for t in sweep.trials()]
    assert found == [(0, "4", "4", 0), (0, "5", "5", 0), (1, "4", "4", 1), (1, "5", "5", 1)]


def test_what_is_refused_stops_a_sweep_that_has_nothing_else(
    base_config: RunConfig, tmp_path: Path
) -> None:
    nowhere = base_config.override({"data.root": str(tmp_path / "nowhere")})
    trials = Sweep("toys", nowhere, {"base": {}, "none": {"method.regularizer": "none"}}).trials()
    with pytest.raises(InputError, match="nowhere"):
        refused(trials)
    assert sorted(refused(trials, others=True)) == sorted(trial.key for trial in trials)
    assert list(refused([*trials, *Sweep("toys", base_config, {"base": {}}).trials()])) == [
        t.key for t in trials
    ]


def test_a_selection_brings_what_it_is_compared_with(base_config: RunConfig) -> None:
    def variants(sweep: Sweep) -> list[str]:
        return [trial.variant for trial in sweep.trials()]

    whole = components(base_config)
    some = whole.only(["-IAR", "+FIR"])
    assert variants(some) == ["base", "+FIR", "-IAR"]
    assert {trial.key for trial in some.trials()} < {trial.key for trial in whole.trials()}
    assert whole.only([]) == whole
    assert variants(whole.only(["base"])) == ["base"]
    sizes = named_sweep("memory_size", named_run("superni/7/forever"), (0,))
    assert variants(sizes.only(["vbm 10 %"])) == ["forever 10 %", "vbm 10 %"]
    with pytest.raises(
        InputError, match=r"unknown variant of components '\+FIRE'; did you mean '\+FIR'"
    ):
        whole.only(["+FIRE"])


def test_a_selection_is_extended_to_the_whole(base_config: RunConfig, tmp_path: Path) -> None:
    whole = components(base_config)

    def listed() -> list[str]:
        return [trial["variant"] for trial in read_manifest(tmp_path)["trials"]]

    whole.only(["-IAR"]).write_manifest(tmp_path)
    assert listed() == ["base", "-IAR"]
    whole.only(["+RR"]).write_manifest(tmp_path)
    assert listed() == ["base", "+RR", "-IAR"]
    whole.write_manifest(tmp_path)
    assert listed() == list(VARIANTS)


def test_manifest_keeps_earlier_trials(base_config: RunConfig, tmp_path: Path) -> None:
    components(base_config, (0,)).write_manifest(tmp_path)
    components(base_config, (1,)).write_manifest(tmp_path)
    components(base_config, (1,)).write_manifest(tmp_path)
    manifest = read_manifest(tmp_path)
    assert manifest["name"] == "components"
    assert manifest["reference"] == "base"
    assert [(t["variant"], t["seed"]) for t in manifest["trials"]] == [
        (v, s) for s in (0, 1) for v in VARIANTS
    ]


def test_manifest_says_who_is_compared_with_whom(base_config: RunConfig, tmp_path: Path) -> None:
    Sweep("s", base_config, {"a": {}, "b": {}}, references={"b": "a"}).write_manifest(tmp_path)
    Sweep("s", base_config, {"c": {}}, references={"c": "a"}).write_manifest(tmp_path)
    assert read_manifest(tmp_path)["references"] == {"b": "a", "c": "a"}
    content = read_manifest(tmp_path)
    del content["references"]  # as earlier versions wrote it
    (tmp_path / "sweep.json").write_text(json.dumps(content), encoding="utf-8")
    assert read_manifest(tmp_path)["references"] == {}


@pytest.mark.parametrize("scale", ["mini/forever", "superni/7/forever"])
def test_methods_are_compared_on_the_same_backbone_and_memory(scale: str) -> None:
    for name, key in (
        ("backbones", "model.name"),
        ("training_time", "model.name"),
        ("memory_size", "memory.fraction"),
    ):
        sweep = named_sweep(name, named_run(scale))
        assert (
            sweep.reference not in sweep.references
            or sweep.references[sweep.reference] == sweep.reference
        )
        for variant, other in sweep.references.items():
            assert sweep.variants[variant].get(key) == sweep.variants[other].get(key)
            assert other.startswith("forever")
        if name == "memory_size":  # FOREVER's own curve begins at its smallest memory
            assert not [variant for variant in sweep.references if variant.startswith("forever")]


def test_no_manifest(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no sweep: there is no sweep\.json"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("name", ["sweep.json", "result.json", "ended.json"])
def test_a_damaged_file_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text('{"state": "fai', encoding="utf-8")
    directory = RunDirectory(tmp_path)
    readers = {
        "sweep.json": lambda: read_manifest(tmp_path),
        "result.json": directory.finished,
        "ended.json": directory.end_without_result,
    }
    with pytest.raises(
        InputError, match=rf"^{re.escape(str(tmp_path / name))} cannot be read \(.*\); remove it"
    ):
        readers[name]()


def test_a_variant_that_does_not_fit_names_itself(base_config: RunConfig) -> None:
    sweep = Sweep("s", base_config, {"odd": {"method.dayz": "uniform"}})
    with pytest.raises(
        InputError,
        match=r"sweep s, variant 'odd': unknown key 'method\.dayz'; did you mean 'method\.days'",
    ):
        sweep.trials()


def test_slugs_are_safe_and_different() -> None:
    assert slug("+IAR&PIR") == "plus_IAR_and_PIR"
    assert slug("-IAR") == "minus_IAR"
    assert len({slug(name) for name in VARIANTS}) == len(VARIANTS)
    assert all(c.isalnum() or c in "_." for name in [*VARIANTS, "a/b c"] for c in slug(name))


def test_baselines_keep_the_base_as_it_is() -> None:
    """Its own method is not touched; S holds for all that have one; only runs of a scale get that
    scale's settings."""

    def methods(base: RunConfig) -> dict[str, dict[str, Any]]:
        return {
            t.variant: t.config.method.model_dump()
            for t in named_sweep("baselines", base, (0,)).trials()
        }

    mini = methods(
        named_run("mini/forever").override({"method.warmup_steps": 8, "method.gamma": 0.5})
    )
    assert (mini["forever"]["warmup_steps"], mini["forever"]["gamma"]) == (8, 0.5)
    assert {mini[name]["warmup_steps"] for name in ("vbm", "fixed_interval")} == {8}
    assert mini["ssr"]["max_tokens"] == 320
    cpu = methods(named_run("cpu/superni/7/forever"))
    assert all(cpu[name] == named_run(f"cpu/superni/7/{name}").method.model_dump() for name in mini)
    paper = methods(named_run("superni/7/forever").override({"data.train_rows": 500}))
    assert (paper["ssr"]["max_tokens"], paper["vbm"]["warmup_steps"]) == (2048, 24)
    assert methods(named_run("mini/finetune"))["vbm"]["warmup_steps"] == 4
