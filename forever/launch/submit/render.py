"""A submission in the words of other schedulers: nothing is started."""

import json
import shlex
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from os.path import normpath
from pathlib import Path
from typing import Any

from forever.launch.submit.kuberay import TAKEN, manifests, read_values, taking_along
from forever.launch.submit.submission import Submission
from forever.yaml_file import to_yaml


def rendered(
    submission: Submission,
    form: str,
    address: str | None,
    folder: Path,
    files: Sequence[str],
    values: Path | None,
) -> str:
    """The text of a submission as `rayjob`, `slurm` or `job`.

    Args:
        address: of the cluster, for `job`.
        folder: what a `job` takes along.
        files: what a `rayjob` takes along, as the words of the submission name them.
        values: the file of a RayJob's values; None takes those that are shipped.

    Raises:
        InputError: as `read_values`.
    """
    if form == "rayjob":
        texts = {name: Path(name).read_text(encoding="utf-8") for name in files}
        return _rayjob(submission, texts, values)
    if form == "slurm":
        return _slurm(submission)
    return _job(submission, address or "http://127.0.0.1:8265", folder)


def _rayjob(submission: Submission, files: Mapping[str, str], values: Path | None) -> str:
    """A RayJob, behind what holds the files that it takes along."""
    # Shells on the way to the head would take a `cd` apart, so each file is named where it will be.
    there = replace(submission, words=tuple(_moved(word, files) for word in submission.words))
    filled: dict[str, Any] = {
        "job": submission.id,
        "entrypoint": there.entrypoint,
        "environment": to_yaml({"env_vars": submission.environment}),
    }
    (job,) = manifests("rayjob", read_values(values) | filled)
    objects = taking_along(job, files) if files else [job]
    return "---\n".join(to_yaml(each, width=100) for each in objects)


def _moved(word: str, files: Container[str]) -> str:
    """A word of a command, in which a file that is taken along is one of the head's."""
    option, sign, path = word.rpartition("=")
    return f"{option}{sign}{TAKEN}/{normpath(path)}" if path in files else word


def _job(submission: Submission, address: str, folder: Path) -> str:
    """The plain command, to be run where `forever submit` was."""
    environment = json.dumps({"env_vars": submission.environment})
    command = ["ray", "job", "submit", "--address", address, "--submission-id", submission.id]
    command += ["--working-dir", str(folder), "--runtime-env-json", environment]
    command += ["--", *submission.command]
    return shlex.join(command) + "\n"


def _slurm(submission: Submission) -> str:
    """A file for sbatch; the folder in which it is handed in must be on all machines."""
    exports = [f"export {name}={shlex.quote(v)}" for name, v in submission.environment.items()]
    return "\n".join(
        [
            "#!/bin/bash",
            f"#SBATCH --job-name={submission.id}",
            "#SBATCH --nodes=2",
            "#SBATCH --ntasks-per-node=1",
            "#SBATCH --gpus-per-node=1",
            "#SBATCH --cpus-per-task=8",
            "#SBATCH --time=24:00:00",
            "#SBATCH --signal=B:TERM@120",
            f"#SBATCH --output={submission.id}-%j.log",
            "#",
            "# Hand it in with sbatch, in a folder that all machines share; the same file goes on.",
            "set -euo pipefail",
            *exports,
            # srun does not inherit --cpus-per-task, and Ray would get one core.
            "export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}",
            # Head and workers share a token that lives as long as the job.
            "export RAY_AUTH_MODE=token",
            "export RAY_AUTH_TOKEN=$(openssl rand -hex 32)",
            'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            "# The shell hears the signal, on the first machine, and tells the sweep there, which",
            "# saves. (Of a TERM to srun would come a KILL to all that it started.)",
            "sweep=$(mktemp)  # the number of the sweep's process",
            # One that has not begun has nothing to save.
            'trap \'if [ -s "$sweep" ]; then kill -TERM "$(cat "$sweep")"; else kill "$steps"; fi; '
            'wait "$steps"\' TERM',
            'srun ray symmetric-run --address "$head:6379" --min-nodes "$SLURM_JOB_NUM_NODES" \\',
            # symmetric-run does not tell its command where the cluster is.
            '    --disable-usage-stats -- env RAY_ADDRESS="$head:6379" \\',
            '    sh -c \'echo $$ > "$0"; exec "$@"\' "$sweep" \\',
            f"    {submission.entrypoint} &",
            "steps=$!",
            'wait "$steps"',
            "",
        ]
    )
