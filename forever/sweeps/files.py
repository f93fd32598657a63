"""Sweeps are files: one YAML file an ablation or a table of the paper.

Those that are shipped lie in `ablations/` and `experiments/`; anybody's own file is the same thing.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.resources import files as package_files
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from pydantic import PrivateAttr, ValidationError, field_validator, model_validator

from forever.config.overrides import explain
from forever.config.parts import Integer, Natural, Seed, at_most
from forever.config.run import RunConfig
from forever.errors import InputError, shown, unknown
from forever.sweeps.named_runs import SCALES, orders, scale_of
from forever.sweeps.parts import (
    LONGEST_NAME,
    Axis,
    BenchmarkName,
    DottedKey,
    Figure,
    MethodName,
    Part,
    Point,
    Scale,
    Variant,
    VariantName,
    filled,
)
from forever.sweeps.sweep import MOST_RUNS, Sweep, check_count, slug
from forever.text import PlainTable
from forever.yaml_file import SUFFIXES, YamlFile

# How much a wide comparison needs is said in its file; a single seed is not evidence.
_SEEDS = {"mini": (0,), "cpu": (0,), "paper": (0, 1, 2)}


class SweepFile(Part):
    """What a sweep's file says."""

    name: str  # that of the file, and of the runs' folder
    title: str
    question: str = ""
    place: Integer = 100  # in lists; the paper's come first
    base: dict[Scale, str] = SCALES
    orders: tuple[BenchmarkName, ...] = ()  # of these benchmarks; none is the base's own order
    seeds: dict[Scale, tuple[Seed, ...]] = _SEEDS
    reference: str = ""  # what variants are compared with; by default `base`, or else the first
    variants_of: str = ""  # another sweep, whose variants stand before this one's own
    # The published numbers are those of `variants_of`, for small benchmarks those on this one.
    beside: BenchmarkName | None = None
    variants: dict[VariantName, Variant] = {}
    each: dict[VariantName, Point] = {}  # what each variant but the bounds is run with in turn
    factors: tuple[str, str] | None = None  # what both are called in a report of their effects
    method: MethodName | None = None  # of a search: whose space it is
    space: dict[DottedKey, Axis] = {}
    spaces: dict[MethodName, dict[DottedKey, Axis]] = {}  # of other methods
    trials: Annotated[Natural, at_most(MOST_RUNS)] = 24
    published_numbers: dict[str, Any] = {}  # that belong to no variant
    figures: tuple[Figure, ...] = ()  # by default those that reports usually show
    _file: YamlFile = PrivateAttr(YamlFile(Path()))

    @field_validator("seeds")
    @classmethod
    def _more_than_one(cls, seeds: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        for scale, numbers in seeds.items():
            if not numbers or len(set(numbers)) < len(numbers):
                raise InputError(f"the seeds of {scale} are {shown(numbers)}; give some, each once")
        seeds = {**_SEEDS, **seeds}
        if len(seeds["paper"]) < 2:
            raise InputError("one seed at scale paper shows nothing; give at least two")
        return seeds

    @model_validator(mode="after")
    def _varies_something(self) -> "SweepFile":
        if bool(self.space) == bool(self.variants or self.variants_of):
            raise InputError("a sweep has either variants or a space")
        if self.each and not (self.reference and not self.space):
            raise InputError("`each` goes with variants and a reference, one of them at a point")
        return self

    @property
    def is_search(self) -> bool:
        """Whether the variants are found while it runs."""
        return bool(self.space)

    @property
    def source(self) -> str:
        """The text of a file that is not shipped, which is kept beside its runs."""
        return "" if shipped_sweeps().get(self.name) is self else self._file.text

    def base_run(self, scale: str) -> str:
        """Return the name or the file of the base run; a file is found beside the sweep's."""
        if scale not in self.base:
            raise unknown("scale", scale, self.base)
        run = self.base[scale]
        return str(self._file.path.parent / run) if run.endswith(SUFFIXES) else run

    def all_variants(self, above: tuple[str, ...] = ()) -> dict[str, Variant]:
        """Return the variants of the file that this one builds on, and its own, each with all of
        `each`.

        Args:
            above: the names of the files that build on this one.

        Raises:
            InputError: the other file is missing or builds on this one, a name has two meanings or
                is too long, or there are too many variants.
        """
        if self.variants_of in above:
            circle = " -> ".join(above)
            raise InputError(f"sweep {self.name}: variants_of goes round in a circle ({circle})")
        variants = self.variants
        if self.variants_of:
            inherited = load_sweep(self.variants_of).all_variants((*above, self.variants_of))
            variants = {**inherited, **variants}
        if not self.each:
            return variants
        # Every variant but the bounds is run with each point: `a` at `x` is called `a x`.
        check_count(self.name, len(variants) * len(self.each))
        bounds = {name: variant for name, variant in variants.items() if variant.is_bound}
        of_point = {f"{name} {point}": name for name, point in product(variants, self.each)}
        crossed: dict[str, Variant] = {}
        for (name, variant), (point, more) in product(variants.items(), self.each.items()):
            if name in bounds:
                continue
            key = f"{name} {point}"
            if key in crossed or key in bounds or len(key) > LONGEST_NAME:
                rule = f"one name has two meanings, or more than {LONGEST_NAME} characters"
                raise InputError(f"sweep {self.name}, each: {shown(key)}: {rule}; give another")
            # It is compared at the point with what it is compared with elsewhere.
            reference = variant.reference or of_point.get(self.reference, self.reference)
            if reference not in bounds:
                reference = f"{reference} {point}"
            named = f"{variant.named or name} {more.named or point}"
            changes = {
                "changes": {**variant.changes, **more.changes},
                "named": named if variant.named or more.named else "",
                "reference": reference,
                "levels": (name, point),
            }
            crossed[key] = variant.model_copy(update=changes)
        return {**crossed, **bounds}

    def expand(
        self,
        base: RunConfig,
        seeds: Sequence[int] | None = None,
        changes: Mapping[str, Any] | None = None,
        only: Sequence[str] = (),
    ) -> Sweep:
        """Return the runs of the sweep around a base run.

        Args:
            seeds: None for the file's own at the base's scale.
            changes: dotted keys of the base.
            only: names of variants; none of them means all.

        Raises:
            InputError: a variant does not exist or does not fit the base, or a change would be
                overwritten by the sweep.
        """
        changes = changes or {}
        base = base.override(changes)
        if seeds is None and base.seed != RunConfig().seed:
            rule = f"a sweep sets the seeds of its runs; give --seeds {base.seed}"
            raise InputError(f"seed={base.seed}: {rule}", key="seed")
        places = orders(base, *self.orders)
        if places and "data.order" in changes:
            rule = f"{self.name} runs on the orders {', '.join(places)}; leave it out"
            raise InputError(f"data.order={changes['data.order']}: {rule}", key="data.order")
        scale = scale_of(base)
        # A variant's key in the file is the paper's name; with `named` it is called otherwise.
        names: dict[str, str] = {}
        paper: dict[str, str] = {}
        variants: dict[str, dict[str, Any]] = {}
        compared: dict[str, str] = {}
        factors: dict[str, dict[str, str]] = {}
        for key, variant in self.all_variants().items():
            if variant.scales is not None and scale not in variant.scales:
                continue
            with self._blamed(key):
                difference, names[key] = variant.difference(base), key
                if variant.named:
                    names[key] = filled(variant.named, base.override(difference))
                    paper[names[key]] = key
            if variants.setdefault(names[key], difference) != difference:
                raise InputError(f"sweep {self.name}: two variants are called {names[key]!r}")
            if variant.reference:
                compared[key] = variant.reference
            for factor, level in zip(self.factors or (), variant.levels, strict=False):
                factors.setdefault(factor, {})[names[key]] = level
        reference = self.reference or ("base" if "base" in names else next(iter(names), ""))
        for key in (reference, *compared.values()):
            if key not in names:
                raise unknown(f"reference of {self.name}", key, names)
        sweep = Sweep(
            self.name,
            base,
            variants,
            tuple(seeds or self.seeds.get(scale, self.seeds["cpu"])),
            places,
            reference=names[reference],
            paper=paper,
            references={names[key]: names[other] for key, other in compared.items()},
            factors=factors,
            source=self.source,
        ).only(only)
        # What is not chosen need not fit the base.
        for name in sweep.chosen():
            with self._blamed(sweep.paper.get(name, name)):
                base.override(sweep.variants[name])
        return sweep

    @contextmanager
    def _blamed(self, variant: str) -> Iterator[None]:
        """Name the variant in an InputError, in a file of one's own with its line."""
        try:
            yield
        except InputError as error:
            message = f"sweep {self.name}, variant {variant!r}: {error}"
            blamed = InputError(message, key=error.key)
            if self.source:
                blamed = self._file.located(blamed, *self._part_with(variant, error.key))
            raise blamed from None

    def _part_with(self, variant: str, key: str) -> tuple[str, str]:
        """Return the part of the file that gives a variant its value of a dotted key."""
        for point in self.each if variant not in self.variants else ():
            own = variant.removesuffix(f" {point}")
            if own != variant and key in self.each[point].changes:
                return "each", point
            if own in self.variants:
                return "variants", own
        return "variants", variant


# ---- finding and reading files


def shipped_folders() -> list[Path]:
    """The folders with the sweeps of the package; a checkout has them on top."""
    root = Path(str(package_files("forever.sweeps"))) / "shipped"
    if not root.is_dir():
        root = root.parents[2]
    return [root / "ablations", root / "experiments"]


@cache
def shipped_sweeps() -> dict[str, SweepFile]:
    """All sweeps of the package by name, in the order of the paper."""
    paths = [path for folder in shipped_folders() for path in folder.glob("*.yaml")]
    sweeps = sorted(map(read_sweep, paths), key=lambda sweep: (sweep.place, sweep.name))
    return {sweep.name: sweep for sweep in sweeps}


def sweep_of(folder: Path, name: str) -> SweepFile | None:
    """The file of the sweep whose runs lie in a folder: its copy there, else the shipped one."""
    path = folder / Sweep.COPY
    if path.is_file():
        return read_sweep(path, name)
    return shipped_sweeps().get(name)


def load_sweep(name_or_path: str) -> SweepFile:
    """A sweep by name, or from a file of one's own.

    Raises:
        InputError: the sweep or file does not exist, or has a mistake; the message names the
            line.
    """
    if name_or_path.endswith(SUFFIXES):
        return read_sweep(Path(name_or_path))
    if name_or_path not in shipped_sweeps():
        raise unknown("sweep", name_or_path, shipped_sweeps())
    return shipped_sweeps()[name_or_path]


def sweep_or_none(name: str) -> SweepFile | None:
    """The sweep that a name or a file means, or None if that is a single run; see `load_sweep`."""
    is_sweep = "/" not in name
    if name.endswith(SUFFIXES):
        keys = YamlFile.read(Path(name)).values.keys()
        is_sweep = not keys.isdisjoint(("variants", "variants_of", "space"))
    return load_sweep(name) if is_sweep else None


def read_sweep(path: Path, name: str = "") -> SweepFile:
    """The sweep that a file describes, under its own name or another; see `load_sweep`."""
    file, name = YamlFile.read(path), name or slug(path.stem)
    if not name.strip(".") or len(name) > LONGEST_NAME:
        raise InputError(
            f"{path}: the file's name is that of the folder with the runs; give it one of letters, "
            f"at most {LONGEST_NAME}"
        )
    try:
        sweep = SweepFile.model_validate({"title": name, **file.values, "name": name})
    except ValidationError as error:
        # The first problem as one line: where, the value and the rule.
        problem = error.errors()[0]
        place = [str(part) for part in problem["loc"] if part not in ("changes", "[key]")]
        cause = problem.get("ctx", {}).get("error")
        if isinstance(cause, InputError):
            raise file.located(cause, *place) from None
        raise file.located(explain(error, file.values, SweepFile)) from None
    sweep._file = file
    return sweep


def sweeps_table() -> PlainTable:
    """Tabulate the shipped sweeps with their questions, in the order of the paper."""
    table = PlainTable()
    table.add_column("sweep", no_wrap=True)
    table.add_column("question")
    for sweep in shipped_sweeps().values():
        table.add_row(sweep.name, sweep.question)
    return table
