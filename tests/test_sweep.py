"""Sweeps: pure data, stable keys, differences only."""

from pathlib import Path
from typing import Any

import pytest

from ablations.components import VARIANTS, components
from experiments.runs import named_run
from experiments.sweeps import SWEEPS, named_sweep
from forever.config import RunConfig
from forever.errors import InputError
from forever.sweep import Sweep, read_manifest, slug


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
    for trial in components(base_config).trials():
        difference = VARIANTS[trial.variant]
        assert trial.config == base_config.override(difference)
        changed = {k for k, v in trial.config.method.model_dump().items() if v != base_config.method.model_dump()[k]}
        assert changed == {key.removeprefix("method.") for key in difference}
        assert trial.config.model_copy(update={"method": base_config.method}) == base_config


def test_the_components_are_the_papers() -> None:
    assert list(VARIANTS) == ["base", "+FIR", "+RR", "+ER", "+STC", "-IAR", "+PIR", "+IAR&PIR"]


@pytest.mark.parametrize("base", ["mini/forever", "cpu/superni/7/forever", "long/4/forever", "standard/1/forever"])
def test_every_named_sweep_expands_on_every_benchmark(base: str) -> None:
    for name in SWEEPS:
        assert named_sweep(name, named_run(base), (0,)).trials()


def test_orders_and_seeds() -> None:
    sweep = Sweep("s", named_run("long/4/finetune"), {"base": {}}, seeds=(0, 1), orders=("4", "5"))
    found = [(t.seed, t.order, t.config.data.order, t.config.seed) for t in sweep.trials()]
    assert found == [(0, "4", "4", 0), (0, "5", "5", 0), (1, "4", "4", 1), (1, "5", "5", 1)]


def test_manifest_keeps_earlier_trials(base_config: RunConfig, tmp_path: Path) -> None:
    components(base_config, (0,)).write_manifest(tmp_path)
    components(base_config, (1,)).write_manifest(tmp_path)
    components(base_config, (1,)).write_manifest(tmp_path)
    manifest = read_manifest(tmp_path)
    assert manifest["name"] == "components"
    assert manifest["reference"] == "base"
    assert [(t["variant"], t["seed"]) for t in manifest["trials"]] == [(v, s) for s in (0, 1) for v in VARIANTS]


def test_no_manifest(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no sweep: there is no sweep\.json"):
        read_manifest(tmp_path)


def test_a_variant_that_does_not_fit_names_itself(base_config: RunConfig) -> None:
    sweep = Sweep("s", base_config, {"odd": {"method.dayz": "uniform"}})
    with pytest.raises(
        InputError, match=r"sweep s, variant 'odd': unknown key 'method\.dayz'; did you mean 'method\.days'"
    ):
        sweep.trials()


def test_slugs_are_safe_and_different() -> None:
    assert slug("+IAR&PIR") == "plus_IAR_and_PIR"
    assert slug("-IAR") == "minus_IAR"
    assert len({slug(name) for name in VARIANTS}) == len(VARIANTS)
    assert all(c.isalnum() or c in "_." for name in [*VARIANTS, "a/b c"] for c in slug(name))


def test_baselines_keep_the_base_as_it_is() -> None:
    """Its own method is not touched; S holds for all that have one; only runs of a scale get that scale's settings."""

    def methods(base: RunConfig) -> dict[str, dict[str, Any]]:
        return {t.variant: t.config.method.model_dump() for t in named_sweep("baselines", base, (0,)).trials()}

    mini = methods(named_run("mini/forever").override({"method.warmup_steps": 8, "method.gamma": 0.5}))
    assert (mini["forever"]["warmup_steps"], mini["forever"]["gamma"]) == (8, 0.5)
    assert {mini[name]["warmup_steps"] for name in ("vbm", "fixed_interval")} == {8}
    assert mini["ssr"]["max_tokens"] == 320
    cpu = methods(named_run("cpu/superni/7/forever"))
    assert all(cpu[name] == named_run(f"cpu/superni/7/{name}").method.model_dump() for name in mini)
    paper = methods(named_run("superni/7/forever").override({"data.train_rows": 500}))
    assert (paper["ssr"]["max_tokens"], paper["vbm"]["warmup_steps"]) == (2048, 24)
    assert methods(named_run("mini/finetune"))["vbm"]["warmup_steps"] == 4
