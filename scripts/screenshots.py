"""Pictures of MLflow's pages for README and docs, taken of a real sweep by a headless browser.

    forever sweep components --only +ER --only +FIR --only +IAR\\&PIR --seeds 0,1
    python -m scripts.screenshots runs/components

It needs Playwright, and Chromium on the PATH; it downloads neither. The sweep is sent to a store of
its own, which is gone afterwards, and its folder is copied before.
"""

import argparse
import io
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from forever.launch.mlflow.pages import free_port, served
from forever.launch.mlflow.place import Place, place_of
from forever.launch.mlflow.sync import sync
from scripts.browser import browser

DOCS = Path(__file__).parents[1] / "docs"
_WIDTH, _HEIGHT, _TALL = 1400, 900, 1400  # of a window, in points
_COLOURS, _LARGEST = 128, 150_000  # of a picture, and its bytes
_WAIT_MS = 60_000  # a page may take so long beside other work


def new_page(browser: Any) -> Any:
    """A page of a browser, which reaches this machine alone."""
    context = browser.new_context(viewport={"width": _WIDTH, "height": _HEIGHT})
    context.set_default_timeout(_WAIT_MS)
    context.route("**/*", _stay_here)
    # MLflow's chat would take a third of each page.
    closed = "localStorage.setItem('mlflow.assistant.panelOpen_v1', 'false');"
    opened = "localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', 'true');"
    context.add_init_script(closed + opened)
    return context.new_page()


def _stay_here(route: Any) -> None:
    if route.request.url.startswith("http://127.0.0.1:"):
        route.continue_()
    else:
        route.abort()


# ---- what a user looks at; each leaves the page when it is there


def open_runs(page: Any, server: str, place: Place) -> None:
    """The list of runs, with the trials of the sweep below it."""
    page.goto(f"{server}/#/experiments/{place.experiment}/runs?workflowType=machine_learning")
    page.locator("button[data-component-id*=runnamecellrenderer]").first.click()
    page.get_by_text(", seed 0").first.wait_for()


def open_comparison(page: Any, server: str, place: Place) -> None:
    """The trials of a sweep beside each other, at the address that its last line says."""
    # Charts are drawn when they are seen.
    page.set_viewport_size({"width": _WIDTH, "height": _TALL})
    page.goto(place.comparison(server))
    page.get_by_text("Show differences only").wait_for()
    page.locator(".bars").first.wait_for()


def open_overview(page: Any, server: str, place: Place) -> None:
    """The overview of a run, with all of its note."""
    page.set_viewport_size({"width": _WIDTH, "height": _HEIGHT})
    page.goto(place.page(server))
    page.get_by_text("Description", exact=True).first.wait_for()
    page.get_by_text("Show more").first.click()
    page.get_by_text("Show less").first.wait_for()


def open_curves(page: Any, server: str, place: Place) -> None:
    """The charts of a run, the scores of each task first."""
    page.goto(place.page(server).replace("?", "/model-metrics?"))
    page.locator(".js-plotly-plot .scatterlayer").first.wait_for()


def open_artifact(page: Any, server: str, place: Place, name: str) -> None:
    """A file of a run, shown in the page."""
    page.goto("about:blank")  # MLflow stays with a file if the address alone changes
    page.goto(place.artifact(server, name))
    page.get_by_text("Path:").wait_for()


# ---- pictures


def take(page: Any, path: Path, settle_ms: int = 3000) -> None:
    """Write what the page shows, in few colours: a chart has no sign that it is drawn."""
    from PIL import Image

    page.wait_for_timeout(settle_ms)
    with Image.open(io.BytesIO(page.screenshot())) as picture:
        picture.convert("RGB").quantize(_COLOURS).save(path, optimize=True)
    size = path.stat().st_size
    print(f"{path}: {size:,} bytes")
    assert size <= _LARGEST, f"{path} is larger than {_LARGEST:,} bytes"


def main() -> None:
    """Take all pictures of one sweep."""
    options = argparse.ArgumentParser(description="Pictures of MLflow's pages.")
    options.add_argument("folder", type=Path, help="a sweep's, with seed 0")
    options.add_argument("--to", type=Path, default=DOCS, help="the folder of the pictures")
    options.add_argument("--trial", default="plus_IAR_and_PIR", help="how a trial's folder begins")
    asked = options.parse_args()
    with TemporaryDirectory() as scratch, browser() as opened:
        folder = Path(shutil.copytree(asked.folder, Path(scratch, asked.folder.name)))
        uri = f"sqlite:///{scratch}/mlflow.db"
        sync(folder, uri)
        sweep, trial = place_of(folder), place_of(next(folder.glob(f"{asked.trial}*-s0-*")))
        assert sweep is not None
        assert trial is not None
        page = new_page(opened)
        with served(uri, free_port(None)) as (server, _):
            open_runs(page, server, sweep)
            take(page, asked.to / "mlflow-runs.png")
            open_comparison(page, server, sweep)
            take(page, asked.to / "mlflow-comparison.png")
            open_overview(page, server, sweep)
            take(page, asked.to / "mlflow-sweep.png")
            open_overview(page, server, trial)
            take(page, asked.to / "mlflow-trial.png")
            open_curves(page, server, trial)
            take(page, asked.to / "mlflow-curves.png")


if __name__ == "__main__":
    main()
