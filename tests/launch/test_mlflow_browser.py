"""`forever ui` and MLflow's pages as a user sees them, in a headless browser."""

import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from marks import MLFLOW_WARNS
from pages import chromium
from stored import by_name, client, histories

pytest.importorskip("mlflow")

from forever.launch.mlflow.pages import NOTE, VIEW, run_note
from forever.launch.mlflow.store import Place, place_of
from forever.launch.mlflow.sync import sync
from forever.runs.directory import RunDirectory

pytestmark = [*MLFLOW_WARNS, pytest.mark.slow]
NAMES = [f"{variant}, order custom, seed 0" for variant in ("base", "+IAR&PIR", "slow")]
HOSTILE = "<img src=x onerror=alert(1)>"
# MLflow's assistant would take a third of each page.
CLOSED = """
    localStorage.setItem('mlflow.assistant.panelOpen_v1', 'false');
    localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', 'true');
"""


@pytest.fixture(scope="module")
def sent(
    trained_sweep: Path, empty_store: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    """A sweep of three trials, and the store that it was sent to."""
    scratch = tmp_path_factory.mktemp("pages")
    folder = Path(shutil.copytree(trained_sweep, scratch / trained_sweep.name))
    uri = f"sqlite:///{shutil.copy(empty_store, scratch / 'mlflow.db')}"
    sync(folder, uri)
    return folder, uri


@pytest.fixture(scope="module")
def server(sent: tuple[Path, str]) -> Iterator[str]:
    """The address of the pages that `forever ui` shows."""
    if find_spec("matplotlib") is None:
        pytest.skip("Matplotlib, which draws the pictures, is not installed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "forever.cli.start", "ui", str(sent[0])]
    command += ["--no-browser", "--port", str(port)]
    address = f"http://127.0.0.1:{port}"
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as shown:
        assert shown.stdout is not None
        line = shown.stdout.readline()  # written when the server answers
        assert line.startswith(f"MLflow  {address}/#/experiments/")
        yield address
        shown.send_signal(signal.SIGINT)
    # Nothing is left of it.
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    """A page of a browser, which reaches this machine alone."""
    with chromium() as browser:
        context = browser.new_context(viewport={"width": 1400, "height": 1400})
        context.set_default_timeout(60_000)

        def stay_here(route: Any) -> None:
            local = route.request.url.startswith("http://127.0.0.1:")
            route.continue_() if local else route.abort()

        context.route("**/*", stay_here)
        context.add_init_script(CLOSED)
        yield context.new_page()


def place(folder: Path) -> Place:
    found = place_of(folder)
    assert found is not None
    return found


def open_overview(page: Any, address: str) -> None:
    """The overview of a run, with all of its description."""
    page.goto(address)
    page.get_by_text("Description", exact=True).first.wait_for()
    page.get_by_text("Show more").first.click()
    page.get_by_text("Show less").first.wait_for()


def test_a_server_takes_runs_by_http_and_a_taken_port_is_refused(
    sent: tuple[Path, str], server: str, folder: Path
) -> None:
    assert sync(folder, server) == sync(folder, server) == 1
    run = by_name(server)["forever on toy, seed 0"]
    assert run.info.status == "FINISHED"
    for key, points in histories(server, run).items():
        assert len({step for step, _ in points}) == len(points), key
    command = [sys.executable, "-m", "forever.cli.start", "ui", str(sent[0]), "--no-browser"]
    command += ["--port", server.rpartition(":")[2]]
    assert subprocess.run(command, capture_output=True, timeout=120).returncode == 2


def test_the_comparison_shows_op_bwt_and_what_differs(
    page: Any, server: str, sent: tuple[Path, str]
) -> None:
    """And no chart of anything else."""
    page.goto(place(sent[0]).comparison(server))
    page.get_by_text("Show differences only").wait_for()
    page.locator(".bars").first.wait_for()
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


def test_a_front_end_that_does_not_read_the_comparison_shows_the_experiment(
    page: Any, server: str, sent: tuple[Path, str]
) -> None:
    found = place(sent[0])
    view = f"{VIEW}{found.run}"
    whole = client(sent[1]).get_experiment(found.experiment).tags[view]
    client(sent[1]).set_experiment_tag(found.experiment, view, "of another release")
    try:
        page.goto("about:blank")
        page.goto(found.comparison(server))
        page.get_by_role("link", name="parts", exact=True).last.wait_for()
    finally:
        client(sent[1]).set_experiment_tag(found.experiment, view, whole)


def test_a_trial_shows_its_matrix_and_its_curves(
    page: Any, server: str, sent: tuple[Path, str]
) -> None:
    folder = next(sent[0].glob("plus*"))
    open_overview(page, place(folder).page(server))
    result: Any = RunDirectory(folder).finished()
    rows = page.locator("table", has_text="score (%) after").locator("tr").all_inner_texts()
    assert [row.split()[0] for row in rows[1:]] == result["tasks"]
    last = [f"{scores[-1]:.1f}" for scores in result["matrix"]]
    assert [row.split()[-1] for row in rows[1:]] == last
    page.goto(place(folder).page(server).replace("?", "/model-metrics?"))
    chart = page.locator(".js-plotly-plot").first  # of acc/colour
    points = chart.locator(".scatterlayer .point")
    points.nth(2).wait_for()  # a chart is drawn bit by bit
    assert points.count() == 3


def test_a_sweep_shows_its_table_and_its_report(
    page: Any, server: str, sent: tuple[Path, str]
) -> None:
    found = place(sent[0])
    open_overview(page, found.page(server))
    table = page.locator("table", has_text="OP (%)").first.inner_text()
    assert all(name.partition(",")[0] in table for name in NAMES)
    assert "[" in table
    page.goto("about:blank")  # MLflow stays with a file if the address alone changes
    page.goto(found.artifact(server, "report.html"))
    page.frame_locator("iframe").get_by_text("Results").locator("visible=true").first.wait_for()


def test_hostile_names_in_a_description_are_text(
    page: Any, server: str, sent: tuple[Path, str]
) -> None:
    folder = next(sent[0].glob("slow*"))
    result: Any = RunDirectory(folder).finished()
    strange = {**result, "tasks": [f"{HOSTILE}{task}" for task in result["tasks"]]}
    run = place(folder).run
    client(sent[1]).set_tag(run, NOTE, run_note(strange, run))
    alerts: list[str] = []
    page.on("dialog", lambda dialog: (alerts.append(dialog.message), dialog.dismiss()))
    open_overview(page, place(folder).page(server))
    assert f"{HOSTILE}colour" in page.inner_text("body")
    page.wait_for_timeout(1000)
    assert alerts == []
    assert page.locator("img[src='x']").count() == 0
