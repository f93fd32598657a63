"""Sweeps are files: those that are shipped keep the keys of their runs, anybody may write one, and
an error in one names its line."""

import hashlib
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from forever.config.run import RunConfig
from forever.errors import InputError
from forever.sweeps.files import load_sweep, shipped_sweeps, sweep_of, sweep_or_none
from forever.sweeps.named_runs import SCALES, load_run, named_run
from forever.sweeps.parts import Figure
from forever.sweeps.published import TABLES, published, table_of
from forever.sweeps.sweep import BOUNDS, read_manifest

ROOT = Path(__file__).parents[2]
SWEEPS = [name for name, sweep in shipped_sweeps().items() if not sweep.is_search]

# The first 16 digits of the SHA-256 of the keys of all runs, a line each: seed 0 at scales mini and
# cpu, seeds 0 to 2 at scale paper. Another key is another folder: finished runs would not be found.
# Those of mini keep 16 examples a task, those of cpu are of its second sizes, those of paper have
# the laboratory's learning rate.
KEYS = """
main_results 1a2aecfde9fddf83 d165976447284f78 737eeebed079c441
backbones 9479401dd2c4dcb7 533e8462465df826 b0b0fdfdfdd71e64
components f52b3af26373b2fa b53de42f11c6d213 56bf30eda0eb8390
spacing 2e6d923baeb485cf 34407c46b422cd22 4ccfae5b0ad0c0a1
memory_size cac88979ffd5e8a2 a23c4f5fe5bdbafa f49a35ce0c040418
warmup_window 46bf24392bb8fc53 e6ca2b244354eba1 265263b9dc6a3011
memory_epochs 023363d5fee956f3 b3f9e45bfbf0ecf0 cdab09f0fe864023
full_finetuning 50390bcb37ef54c5 589bfa8bce8b345e 203844f9d4768bc9
long_sequence cf7fa4942ee92f5a 3d5bb3e1331634dd dc24275948b859c5
forgetting_rate e9e06cf1b240f8ba dabf4ae7fba72159 231efecbf6e121b3
model_day edd0606a5985dcfd 9a7f697f5597080f ef57030b7f88a331
training_time b93f5f2a6cf9e90f fa15f84190270a39 aaa28a796716194b
replay_loss cf239e59832dadc3 cb2c44ae10beec4f f922c9acd605689a
baselines e80add8c00017f25 b212ac3cc7b21c46 ff0af93b0e75c794
baseline_variants a790d55b6376d901 9a7d2efd0c9c2684 38303fbadc8118a1
demo 35baf6172085cf1a af37fc6ffcee84a3 e91ecda3346b472e
arena 6bf07bccfaf8b361 12d833b24274370a da8af9347c9a80ee
doses 83f3ba2a5adec7d6 eb60c07255e9add1 66db7ee35ea1d1cf
protocol 9b48b1a84f7ba3ad f2585961f12a026e f6b2b921b4220732
tuned 295091c98552e79a c9086ac774a49ec8 7b67a73307c1067a
language_model f1a698cb43c6a071 b87c21d66b3ad089 a13f3be81ca1a95a
"""

# Variants that came later or are read anew; the runs of all others stay where they are.
ANEW = {
    "components": {
        "+RR", "+ER", "+RR from day 30", "+ER with all passes", "random times", "pad", "mix_replay",
    },
    "spacing": {"step clock", "random times", "end only", "pad", "mix_replay"},
    "demo": {"+RR", "+ER"},
    "forgetting_rate": {"forever"},
    "main_results": {"sapt, lambda = 2"},
    "baselines": {"sapt, lambda = 2"},
    "baseline_variants": {
        "fixed_interval, 3 events", "fixed_interval, 5 events",
        "moelora, N = 8, r = 1", "recurrent_kif", "recurrent_kif, merge as printed",
    },
}  # fmt: skip

PINNED = [line.split() for line in KEYS.strip().splitlines()]


@pytest.mark.parametrize(("name", "digests"), [(line[0], line[1:]) for line in PINNED])
def test_runs_keep_their_folders(name: str, digests: list[str]) -> None:
    for (scale, run), digest in zip(SCALES.items(), digests, strict=True):
        seeds = (0, 1, 2) if scale == "paper" else (0,)
        trials = load_sweep(name).expand(load_run(run), seeds).trials()
        keys = [trial.key for trial in trials if trial.variant not in ANEW.get(name, ())]
        assert hashlib.sha256("\n".join(keys).encode()).hexdigest()[:16] == digest, scale


def test_every_sweep_is_pinned_and_lies_in_a_folder() -> None:
    assert {line[0] for line in PINNED} <= {*SWEEPS}  # a new sweep has no folders to keep yet
    files = [*ROOT.glob("ablations/*.yaml"), *ROOT.glob("experiments/*.yaml")]
    assert sorted(path.stem for path in files) == sorted(shipped_sweeps())


@pytest.mark.parametrize("scale", SCALES)
def test_no_variant_is_another_one_under_another_name(scale: str) -> None:
    """A report would call the two equivalent."""
    for name in SWEEPS:
        file = load_sweep(name)
        sweep = replace(file.expand(load_run(file.base_run(scale))), seeds=(0,))
        fingerprints = [(trial.order, trial.config.fingerprint()) for trial in sweep.trials()]
        assert len(fingerprints) == len({*fingerprints}), name
        assert len(file.seeds["paper"]) >= 3  # one seed is no evidence


def test_published_numbers_and_figures_of_a_sweep() -> None:
    label = "memory (% of a task's examples)"
    figure = Figure(kind="sensitivity", key="memory.fraction", label=label, unit=100)
    assert figure in load_sweep("memory_size").figures
    assert sweep_of(Path("nowhere"), "an old name") is table_of("an old name", "mini") is None
    fir = TABLES["components"]["superni"]["+FIR"]
    assert published("components", "mini", "+FIR") == fir


@pytest.mark.parametrize("seconds", [None, 2.0])
def test_a_budget_of_seconds_replaces_that_of_the_file(seconds: float | None) -> None:
    changes = {} if seconds is None else {"budget.seconds": seconds}
    sweep = load_sweep("arena_seconds").expand(load_run("mini/forever"), (0,), changes)
    for trial in sweep.trials():
        expected = seconds if trial.variant in BOUNDS else seconds or 0.12
        assert trial.config.budget.seconds == expected


def test_a_budget_for_each_task_replaces_that_of_the_file() -> None:
    base, doses = load_run("mini/forever"), (1, 2, 3, 4, 5, 6, 7)
    (trial, *_) = load_sweep("when_how_doses").expand(base, (0,)).trials()
    assert trial.config.budget.examples == 26
    changes = {"budget.examples": [*doses]}
    for trial in load_sweep("when_how_doses").expand(base, (0,), changes).trials():
        assert trial.config.budget.examples == doses


# ---- files of one's own


def written(folder: Path, text: str, name: str = "mine.yaml") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_variants_are_enough(tmp_path: Path) -> None:
    text = "variants: {late: {method.days: [4, 7, 15, 30]}, base: {}, once: {method.days: [7]}}"
    file = load_sweep(written(tmp_path, text))
    sweep = file.expand(load_run(file.base_run("mini")))
    assert (file.title, file.base, sweep.reference, sweep.seeds) == ("mine", SCALES, "base", (0,))
    days = [trial.config.method.model_dump()["days"] for trial in sweep.trials()]
    assert days == [[4.0, 7.0, 15.0, 30.0], "ebbinghaus", [7.0]]
    unnamed = load_sweep(written(tmp_path, "variants: {b: {}, a: {method.days: [7]}}"))
    assert unnamed.expand(load_run("mini/forever")).reference == "b"


MINE = """
title: Clip the gradient less
question: Does it help?
seeds: {mini: [7, 8]}
variants:
  base: {published: {superni: {op: 42.5}}}
  double: {optim.clip: {times: 2}}
  by S: {method.smoothing: {times: 0.01, of: method.day_steps}, named: "λ = {method.smoothing}"}
  small: {optim.epochs: 3, scales: [mini], reference: double}
"""


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    file = load_sweep(written(tmp_path, MINE, "less clipping.yaml"))
    sweep = file.expand(load_run(file.base_run("mini")))
    assert (sweep.name, sweep.seeds, sweep.reference) == ("less_clipping", (7, 8), "base")
    assert sweep.variants == {
        "base": {},
        "double": {"optim.clip": 2.0},
        "λ = 0.02": {"method.smoothing": 0.02},
        "small": {"optim.epochs": 3},
    }
    assert (sweep.paper, sweep.references) == ({"λ = 0.02": "by S"}, {"small": "double"})
    assert list(file.expand(load_run(SCALES["cpu"])).variants) == ["base", "double", "λ = 0.02"]
    sweep.write_manifest(tmp_path / "runs")
    kept = sweep_of(tmp_path / "runs", read_manifest(tmp_path / "runs")["name"])
    assert kept is not None
    assert (kept.name, kept.title, kept.question) == (sweep.name, file.title, "Does it help?")
    row = published(kept, "mini", "base")
    assert row is not None
    assert row.op == 42.5


def test_a_base_run_of_ones_own_lies_beside_the_sweep(tmp_path: Path) -> None:
    run = written(tmp_path, "seed: 0\n", "run.yaml")
    path = written(tmp_path, "base: {mini: run.yaml}\nvariants: {a: }\n")
    assert load_run(load_sweep(path).base_run("mini")) == RunConfig.parse({"seed": 0})
    assert sweep_or_none(path) is not None
    assert sweep_or_none(run) is sweep_or_none("mini/forever") is None
    with pytest.raises(InputError, match="'cpu'"):
        load_sweep(path).base_run("cpu")


CROSSED = """
reference: a small
variants:
  a: {}
  b: {optim.clip: 2, reference: a}
  c: {method: finetune}
  d: {optim.epochs: 3, optim.clip: 4, named: "D {optim.epochs}"}
  e: {reference: c}
each:
  small: {memory.fraction: 0.1}
  large: {memory.fraction: 0.2, optim.clip: 3, named: "{memory.fraction %}"}
"""


def test_each_variant_but_the_bounds_is_run_with_each(tmp_path: Path) -> None:
    sweep = load_sweep(written(tmp_path, CROSSED)).expand(load_run("mini/forever"))
    small, large = {"memory.fraction": 0.1}, {"memory.fraction": 0.2, "optim.clip": 3}
    bound = sweep.variants["c"]
    assert bound["method.name"] == "finetune"
    assert not {"memory.fraction", "optim.clip"} & set(bound)
    assert {name: changes for name, changes in sweep.variants.items() if name != "c"} == {
        "a small": small,
        "a 20 %": large,
        "b small": {**small, "optim.clip": 2},
        "b 20 %": large,
        "D 3 small": {**small, "optim.epochs": 3, "optim.clip": 4},
        "D 3 20 %": {**large, "optim.epochs": 3},
        "e small": small,
        "e 20 %": large,
    }
    assert sweep.paper == {
        "a 20 %": "a large", "b 20 %": "b large", "D 3 small": "d small", "D 3 20 %": "d large",
        "e 20 %": "e large",
    }  # fmt: skip
    assert sweep.reference == "a small"
    assert sweep.references == {
        "a small": "a small", "a 20 %": "a 20 %", "b small": "a small", "b 20 %": "a 20 %",
        "D 3 small": "a small", "D 3 20 %": "a 20 %", "e small": "c", "e 20 %": "c",
    }  # fmt: skip


def test_a_bound_stays_as_it_is_and_may_be_the_reference(tmp_path: Path) -> None:
    text = "variants: {a: , m: {method.name: mtl}}\nreference: m\neach: {x: {optim.clip: 1}}"
    sweep = load_sweep(written(tmp_path, text)).expand(load_run("mini/forever"))
    assert {*sweep.variants} == {"a x", "m"}
    assert (sweep.reference, sweep.references) == ("m", {"a x": "m"})


# A file, with / for the end of a line; the line that is wrong; and what the error names.
WRONG = """
variants:/ base:/  method.dayz: x | 3 | method.days
title: t/variantz: {} | 2 | variants
variants:/ b:/  optim.lr: 1/  method.beta: -1 | 4 | method.beta
variants:/ a: {method: forevr} | 2 | forever
variants:/ a: {published: {superni: {ap: 1}}} | 2 | superni.op
variants:/ a: {method.days: {times: 2}} | 2 | method.days
variants: {a: 3} | 1 | 3
variants: {a: }/seeds: {paper: [0]} | 2 | paper
variants: {a: }/figures:/- radar/- radr | 4 | radar
variants: {a: }/space: {optim.lr: {among: [1]}} | 1 | space
space:/ optim.lr: {from: 1} | 2 | among
space:/ optim.lr: {from: 2, to: 1} | 2 | from=2
variants: {a: }/each: {x: {seed: 1}} | 1 | reference
variants:/ a:/  optim.lr: 1/each:/ x:/  optim.clip: x/reference: a x | 6 | optim.clip
variants: {a: }/each:/ x: {optim.lr: 1}/ b x:/  optim.clip: -1/reference: a x | 5 | optim.clip
"""


@pytest.mark.parametrize("wrong", WRONG.strip().splitlines())
def test_an_error_in_a_file_names_its_line(wrong: str, tmp_path: Path) -> None:
    text, line, named = wrong.split(" | ")
    path = written(tmp_path, text.replace("/", "\n"))
    with pytest.raises(InputError) as error:
        load_sweep(path).expand(named_run("mini/forever"))
    assert (error.value.path, error.value.line) == (Path(path), int(line))
    assert named in str(error.value)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("variants_of: mine.yaml", "circle"),
        ("variants: {a: {reference: b}}", "'b'"),
        ("variants: {a: {named: x}, b: {named: x, seed: 1}}", "'x'"),
        ("variants: {a b: , a/b: }", "'a/b'"),  # in one folder
    ],
)
def test_variants_that_get_in_each_others_way_are_refused(
    text: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, text)
    with pytest.raises(InputError, match=named):
        load_sweep("mine.yaml").expand(load_run("mini/forever")).trials()


@pytest.mark.parametrize("name", ["...yaml", "x" * 200 + ".yaml"])
def test_a_file_whose_name_can_be_no_folder_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        load_sweep(written(tmp_path, "variants: {a: }", name))


@pytest.mark.parametrize(("name", "key"), [("main_results", "data.order"), ("components", "seed")])
def test_what_a_sweep_would_overwrite_is_refused(name: str, key: str) -> None:
    with pytest.raises(InputError) as error:
        load_sweep(name).expand(named_run("mini/forever"), changes={key: 2})
    assert error.value.key == key


@pytest.mark.slow
def test_a_wheel_holds_the_sweeps_and_one_package(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "installed")
    assert {name.split("/")[0].split("-")[0] for name in names} == {"forever", "forever_cl"}
    assert {"forever/py.typed", "forever/models/tiny/model.safetensors"} <= {*names}
    code = "from forever.sweeps.files import shipped_sweeps; print(*shipped_sweeps())"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={"PYTHONPATH": str(tmp_path / "installed")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == [*shipped_sweeps()], done.stderr
