"""Sweeps are files: one YAML file an ablation or a table of the paper.

Those that are shipped lie in `ablations/` and `experiments/`; anybody's own file is the same thing.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files as package_files
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PrivateAttr, ValidationError, field_validator, model_validator

from forever.config.overrides import dotted_keys
from forever.config.run import RunConfig
from forever.errors import InputError, unknown
from forever.sweeps.named_runs import SCALES, orders, scale_of
from forever.sweeps.parts import (
    USUAL_FIGURES,
    BenchmarkName,
    Beside,
    Dimension,
    DottedKey,
    Figure,
    MethodName,
    Part,
    Scale,
    Variant,
    filled,
)
from forever.sweeps.reading import Lines, read_yaml
from forever.sweeps.sweep import Sweep, slug

FOLDERS = ("ablations", "experiments")
_SUFFIXES = (".yaml", ".yml")
# How much a wide comparison needs is said in its file; a single seed is no evidence.
_SEEDS: dict[Scale, tuple[int, ...]] = {"mini": (0,), "cpu": (0,), "paper": (0, 1, 2)}


class SweepFile(Part):
    """What a sweep's file says.

    Attributes:
        name: the name of the file, which is also that of the runs' folder.
        place: where the sweep stands in lists; those of the paper come first.
        base: the run that is varied, by scale.
        orders: benchmarks on whose orders every variant runs; none of them is the base's own order.
        reference: the variant that the others are compared with; the first if it is not said.
        variants_of: another sweep whose variants stand before this one's own.
        method, space, trials: of a search: whose space it is, the space, and the number of runs.
        published_numbers: numbers of the paper that are no variant's.
        beside: the table that the numbers stand beside, if it is in another file.
    """

    name: str
    title: str
    question: str = ""
    place: int = 100
    base: dict[Scale, str] = SCALES  # pyright: ignore[reportAssignmentType]
    orders: tuple[BenchmarkName, ...] = ()
    seeds: dict[Scale, tuple[int, ...]] = _SEEDS
    reference: str = ""
    variants_of: str | None = None
    variants: dict[str, Variant] = {}
    method: MethodName | None = None
    space: dict[DottedKey, Dimension] = {}
    trials: Annotated[int, Field(ge=1)] = 24
    published_numbers: dict[str, Any] = {}
    beside: Beside | None = None
    figures: tuple[Figure, ...] = tuple(Figure(kind=kind) for kind in USUAL_FIGURES)
    _source: Path | None = PrivateAttr(None)
    _lines: Lines = PrivateAttr(default_factory=dict)

    @field_validator("seeds")
    @classmethod
    def _more_than_one(cls, seeds: dict[Scale, tuple[int, ...]]) -> dict[Scale, tuple[int, ...]]:
        if len(seeds.get("paper", _SEEDS["paper"])) < 2:
            raise InputError("one seed at scale paper shows nothing; give at least two")
        return {**_SEEDS, **seeds}

    @model_validator(mode="after")
    def _varies_something(self) -> "SweepFile":
        if bool(self.space) == bool(self.variants or self.variants_of):
            raise InputError("a sweep has either variants or a space")
        return self

    @property
    def is_search(self) -> bool:
        """Whether the variants are found while it runs."""
        return bool(self.space)

    @property
    def own(self) -> bool:
        """Whether it is somebody's own and not shipped."""
        return self._source is not None and self._source not in _shipped().values()

    @property
    def text(self) -> str:
        """The file as it is written."""
        return self._source.read_text(encoding="utf-8") if self._source else ""

    def all_variants(self) -> dict[str, Variant]:
        """The variants of the file that this one builds on, and its own."""
        inherited = load_sweep(self.variants_of).all_variants() if self.variants_of else {}
        return {**inherited, **self.variants}

    def base_run(self, scale: str) -> str:
        """The name or the file of the base run; a file is found beside the sweep's.

        Raises:
            InputError: the sweep has no such scale.
        """
        if scale not in self.base:
            raise unknown("scale", scale, self.base)
        run = self.base[scale]  # pyright: ignore[reportArgumentType]
        if run.endswith(_SUFFIXES) and self._source is not None:
            return str(self._source.parent / run)
        return run

    def expand(
        self,
        base: RunConfig,
        seeds: Sequence[int] | None = None,
        changes: Mapping[str, Any] | None = None,
        only: Sequence[str] = (),
    ) -> Sweep:
        """The runs of the sweep around a base run.

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
            raise InputError(
                f"seed={base.seed}: a sweep sets the seeds of its runs; give --seeds {base.seed}"
            )
        places = orders(base, *self.orders) if self.orders else {}
        if places and "data.order" in changes:
            raise InputError(
                f"data.order={changes['data.order']}: {self.name} runs on the orders "
                f"{', '.join(places)}; of the other sweeps each is on one order, that of its base"
            )
        own_seeds = self.seeds.get(scale_of(base), self.seeds["cpu"])  # pyright: ignore
        sweep = self._sweep(base, places, tuple(seeds or own_seeds)).only(only)
        for name in sweep.chosen():
            try:
                base.override(sweep.variants[name])
            except InputError as error:
                raise self._wrong(name, error) from None
        return sweep

    def _sweep(self, base: RunConfig, places: dict[str, Any], seeds: tuple[int, ...]) -> Sweep:
        scale = scale_of(base)
        variants: dict[str, dict[str, Any]] = {}
        paper: dict[str, str] = {}
        names: dict[str, str] = {}
        here = {
            key: variant
            for key, variant in self.all_variants().items()
            if variant.scales is None or scale in variant.scales
        }
        for key, variant in here.items():
            try:
                difference = variant.difference(base, scale)
                run = base.override(difference) if variant.named else base
            except InputError as error:
                raise self._wrong(key, error) from None
            names[key] = filled(variant.named, run) if variant.named else key
            variants[names[key]] = difference
            if variant.named or variant.stands_for:
                paper[names[key]] = variant.stands_for or key
        reference = self.reference or next(iter(names), "")
        references = {key: variant.reference for key, variant in here.items() if variant.reference}
        for asked in (reference, *references.values()):
            if asked not in names:
                raise unknown(f"reference of {self.name}", asked, names)
        reference, own = names[reference], {names[a]: names[b] for a, b in references.items()}
        source = self.text if self.own else ""
        return Sweep(self.name, base, variants, seeds, places, reference, paper, own, source=source)

    def _wrong(self, variant: str, error: InputError) -> InputError:
        """The error of a variant with the line of the key that it names, else of the variant."""
        line = self._lines.get(("variants", variant))
        for path, at in self._lines.items():
            if path[:2] == ("variants", variant) and len(path) == 3 and path[2] in str(error):
                line = at
        where = f"{self._source}, line {line}: " if self.own and line else ""
        return InputError(f"{where}sweep {self.name}, variant {variant!r}: {error}")


# ---- finding and reading files


@cache
def _shipped() -> dict[str, Path]:
    """The files of the package by name; a checkout has them at its top."""
    package = Path(str(package_files("forever.sweeps"))) / "shipped"
    root = package if package.is_dir() else package.parents[2]
    paths = [path for folder in FOLDERS for path in (root / folder).glob("*.yaml")]
    return {path.stem: path for path in paths}


@cache
def shipped_sweeps() -> dict[str, SweepFile]:
    """All sweeps that are shipped, in the order of the paper."""
    sweeps = [load_sweep(name) for name in _shipped()]
    sweeps.sort(key=lambda sweep: (sweep.place, sweep.name))
    return {sweep.name: sweep for sweep in sweeps}


@cache
def find_sweep(name: str) -> SweepFile | None:
    """The shipped sweep of that name, or None."""
    return read_sweep(_shipped()[name]) if name in _shipped() else None


def sweep_of(folder: Path, name: str) -> SweepFile | None:
    """The file of the sweep whose runs lie in a folder: its copy there, else the shipped one."""
    path = folder / Sweep.COPY
    return read_sweep(path, name) if path.is_file() else find_sweep(name)


def load_sweep(name_or_path: str) -> SweepFile:
    """A sweep by name, or from a file of one's own.

    Raises:
        InputError: there is no such sweep or file, or it says something wrong; one line, with the
            number of the line.
    """
    if name_or_path.endswith(_SUFFIXES):
        return read_sweep(Path(name_or_path))
    sweep = find_sweep(name_or_path)
    if sweep is None:
        raise unknown("sweep", name_or_path, _shipped())
    return sweep


def sweep_or_none(name: str) -> SweepFile | None:
    """The sweep that a name or a file means, or None if that is a single run.

    Raises:
        InputError: it is neither.
    """
    if not name.endswith(_SUFFIXES):
        return None if "/" in name else load_sweep(name)
    keys = read_yaml(Path(name))[0]
    return load_sweep(name) if {"variants", "variants_of", "space"} & keys.keys() else None


def read_sweep(path: Path, name: str = "") -> SweepFile:
    """The sweep that a file describes.

    Args:
        name: of the sweep, if not the file's own.

    Raises:
        InputError: see `load_sweep`.
    """
    values, lines = read_yaml(path)
    try:
        sweep = SweepFile.model_validate({**values, "name": name or slug(path.stem)})
    except ValidationError as error:
        raise _explained(error, lines, path) from None
    sweep._source, sweep._lines = path, lines
    return sweep


def _explained(error: ValidationError, lines: Lines, path: Path) -> InputError:
    """The first problem of a file as one line: where, the value and the rule."""
    problem = error.errors()[0]
    place = tuple(str(part) for part in problem["loc"] if part not in ("changes", "[key]"))
    line = next((lines[place[:end]] for end in range(len(place), 0, -1) if place[:end] in lines), 1)
    where, key = f"{path}, line {line}", ".".join(place)
    cause = problem.get("ctx", {}).get("error")
    if problem["type"] == "missing":
        return InputError(f"{where}: {key} is missing")
    if problem["type"] == "extra_forbidden":
        valid: Mapping[str, Any] = SweepFile.model_fields
        if place[0] in ("figures", "space", "beside"):
            part = {"figures": Figure, "space": Dimension, "beside": Beside}[place[0]]
            valid = {field.alias or name: field for name, field in part.model_fields.items()}
        return InputError(f"{where}: {unknown('key', place[-1], valid)}")
    if isinstance(cause, InputError):
        words = set(Variant.model_fields) - {"changes"}
        if problem["loc"][-1:] == ("[key]",) and place[0] == "variants":
            cause = unknown("key", place[-1], {*dotted_keys(RunConfig), *words})
        return InputError(f"{where}: {cause}")
    rule = problem["msg"][0].lower() + problem["msg"][1:]
    return InputError(f"{where}: {key}={problem['input']!r}: {rule}")
