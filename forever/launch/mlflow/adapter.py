"""The adapter after the last task as a logged model of MLflow, with the scores of its run.

It is what `forever run` wrote: weights as safetensors and a configuration as JSON, no pickle.
"""

import re
from pathlib import Path
from typing import Any

from forever.launch.mlflow.store import Store
from forever.runs.directory import RunDirectory
from forever.runs.shapes import check_weights
from forever.text import visible

FOLDER = "adapter"  # of a run's directory
# Metrics that say how good it is; the others say how it came to be.
_SCORES = ("final/", "acc/", "op", "bwt")


def send_adapter(store: Store, run: str, folder: Path) -> None:
    """Show the adapter in the run's `folder`, if it has one, as a model that the MLflow run made.

    What an earlier call sent is not sent again: a model that is ready is complete.

    Raises:
        InputError: it is not what the run wrote.
    """
    from mlflow.entities import LoggedModelOutput

    if not (folder / FOLDER).is_dir():
        return
    check_weights(folder, RunDirectory(folder).finished() or {})
    client, known = store.client, store.client.get_run(run)
    model = _model(store, known)
    if str(model.status) == "READY":
        return
    client.log_model_artifacts(model.model_id, str(folder / FOLDER))
    outputs = known.outputs.model_outputs if known.outputs else []
    if not outputs:
        client.log_outputs(run, [LoggedModelOutput(model.model_id, step=0)])
    client.log_batch(run, metrics=_linked(known, model))
    client.finalize_logged_model(model.model_id, "READY")


def _model(store: Store, run: Any) -> Any:
    """The logged model of a run, created if need be."""
    experiment, identity = run.info.experiment_id, run.info.run_id
    found = store.client.search_logged_models(
        [experiment], f"source_run_id = '{identity}'", max_results=1
    )
    if found:
        return found[0]
    # Those characters have a meaning in MLflow's addresses of models.
    name = re.sub(r"[/:.%\"']", "_", visible(run.info.run_name))
    about = {key: run.data.params[key] for key in ("model.name", "method.name")}
    return store.client.create_logged_model(
        experiment, name=name, source_run_id=identity, params=about, model_type="adapter"
    )


def _linked(run: Any, model: Any) -> list[Any]:
    """The last scores of a run as points of a model, too.

    A store knows a point by key, step, time and value, so that the run has none of them twice.
    """
    from mlflow.entities import Metric

    points: list[Metric] = []
    for last in run.data.to_proto().metrics:
        if last.key.startswith(_SCORES):
            point = (last.key, last.value, last.timestamp, last.step)
            points.append(Metric(*point, model_id=model.model_id, run_id=run.info.run_id))
    return points
