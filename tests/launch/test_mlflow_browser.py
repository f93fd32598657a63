"""MLflow's pages as a user sees them, in a headless browser."""

import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from marks import MLFLOW_WARNS
from pages import chromium

pytest.importorskip("mlflow")

from forever.launch.mlflow.notes import NOTE, run_note
from forever.launch.mlflow.pages import free_port, served
from forever.launch.mlflow.place import Place, place_of
from forever.launch.mlflow.store import Store
from forever.launch.mlflow.sync import sync
from forever.runs.directory import RunDirectory
from scripts.screenshots import (
    new_page,
    open_artifact,
    open_comparison,
    open_curves,
    open_overview,
    open_runs,
    take,
)

pytestmark = [*MLFLOW_WARNS, pytest.mark.slow]
NAMES = [f"{variant}, order custom, seed 0" for variant in ("base", "+IAR&PIR", "slow")]
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def sent(
    trained_sweep: Path, empty_store: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    """A sweep of three trials, and the store that it was sent to."""
    place = tmp_path_factory.mktemp("pages")
    folder = Path(shutil.copytree(trained_sweep, place / trained_sweep.name))
    uri = f"sqlite:///{shutil.copy(empty_store, place / 'mlflow.db')}"
    sync(folder, uri)
    return folder, uri


@pytest.fixture(scope="module")
def server(sent: tuple[Path, str]) -> Iterator[str]:
    if find_spec("matplotlib") is None:
        pytest.skip("there are no pictures without Matplotlib")
    with served(sent[1], free_port(0)) as (address, _):
        yield address


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    with chromium() as browser:
        yield new_page(browser)


def trial(sent: tuple[Path, str], beginning: str = "plus") -> tuple[Path, Place]:
    folder = next(sent[0].glob(f"{beginning}*"))
    place = place_of(folder)
    assert place is not None
    return folder, place


@pytest.fixture
def parent(sent: tuple[Path, str]) -> Place:
    place = place_of(sent[0])
    assert place is not None
    return place


def test_the_parent_has_its_trials_below_it(page: Any, server: str, parent: Place) -> None:
    open_runs(page, server, parent)
    for name in NAMES:
        page.get_by_role("link", name=name).first.wait_for()
    page.get_by_role("link", name="parts", exact=True).last.wait_for()


def test_three_trials_compared_show_op_bwt_and_what_differs(
    page: Any, server: str, parent: Place
) -> None:
    """And no chart of anything else."""
    open_comparison(page, server, parent)
    for name in NAMES:
        page.get_by_role("link", name=name).first.wait_for()
    page.get_by_text("optim.lr").last.wait_for()
    shown = page.inner_text("body")
    for text in ("OP and BWT", "final/op", "final/bwt", "Parameters that differ"):
        assert text in shown
    assert "method.regularizer" in shown
    assert "optim.epochs" not in shown  # all have the same
    for other in ("train/loss", "acc/", "replay/beta", "final/forgetting", "clock"):
        assert other not in shown


def test_a_trial_shows_its_matrix(page: Any, server: str, sent: tuple[Path, str]) -> None:
    folder, place = trial(sent)
    open_overview(page, server, place)
    result: Any = RunDirectory(folder).finished()
    rows = page.locator("table", has_text="score (%) after").locator("tr")
    told = [line.split() for line in rows.all_inner_texts()]
    assert [line[0] for line in told[1:]] == result["tasks"]
    last = [f"{scores[-1]:.1f}" for scores in result["matrix"]]
    assert [line[-1] for line in told[1:]] == last
    picture = page.locator("img[alt='matrix'], img[src*='overview.png']").first
    picture.wait_for()
    assert 0 < picture.evaluate("image => image.naturalWidth") <= 560
    assert "Less the reference with this order and seed" in page.inner_text("body")


def test_scores_after_each_task_are_curves(page: Any, server: str, sent: tuple[Path, str]) -> None:
    open_curves(page, server, trial(sent)[1])
    chart = page.locator(".js-plotly-plot").first  # of acc/colour
    points = chart.locator(".scatterlayer .point")
    points.nth(2).wait_for()  # a chart is drawn bit by bit
    assert points.count() == 3


def test_the_overview_of_a_sweep_has_its_table(page: Any, server: str, parent: Place) -> None:
    open_overview(page, server, parent)
    table = page.locator("table", has_text="OP (%)").first.inner_text()
    assert all(name.partition(",")[0] in table for name in NAMES)
    assert "[" in table


@pytest.mark.parametrize(("name", "text"), [("report.html", "Results"), ("variants.csv", "slow")])
def test_artifacts_of_a_sweep_are_shown_inline(
    page: Any, server: str, parent: Place, name: str, text: str
) -> None:
    open_artifact(page, server, parent, name)
    inside = page.frame_locator("iframe") if name.endswith("html") else page
    inside.get_by_text(text).locator("visible=true").first.wait_for()


@pytest.mark.parametrize("name", ["matrix.png", "timeline.png", "figures/op.png"])
def test_pictures_are_shown_inline(
    page: Any, server: str, sent: tuple[Path, str], parent: Place, name: str
) -> None:
    open_artifact(page, server, parent if "/" in name else trial(sent)[1], name)
    page.locator(
        ".js-plotly-plot .imagelayer image, img[src*='blob'], img[src*='png']"
    ).first.wait_for()


def test_hostile_names_in_a_note_are_text(
    page: Any, server: str, sent: tuple[Path, str], tmp_path: Path
) -> None:
    folder, place = trial(sent, "slow")
    result: Any = RunDirectory(folder).finished()
    strange = {**result, "tasks": [f"{HOSTILE}{task}" for task in result["tasks"]]}
    Store(sent[1]).client.set_tag(place.run, NOTE, run_note(strange, place.run))
    alerts: list[str] = []
    page.on("dialog", lambda dialog: (alerts.append(dialog.message), dialog.dismiss()))
    open_overview(page, server, place)
    assert f"{HOSTILE}colour" in page.inner_text("body")
    take(page, tmp_path / "page.png")
    assert alerts == []
    assert page.locator("img[src='x']").count() == 0
