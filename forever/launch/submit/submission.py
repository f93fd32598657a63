"""A sweep as a job: its name, which follows from what it does, its command and environment."""

import hashlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from forever.config.run import RunConfig
from forever.errors import InputError
from forever.launch.submit.pinned import CODE
from forever.runs.environment import code
from forever.sweeps.files import SweepFile
from forever.sweeps.sweep import slug
from forever.text import holds_secret, without_credentials

# In an id. KubeRay refuses a RayJob whose name has more than 47 characters.
_LONGEST_NAME = 47 - len("forever-") - len("-0123456789ab")
_NO_NAME = re.compile(r"[^a-z0-9]+")
_ALWAYS = {
    "PYTHONUNBUFFERED": "1",
    # Runs get the time to save when the job is stopped; Ray would kill them after three seconds.
    "RAY_JOB_STOP_WAIT_TIME_S": "30",
}


@dataclass(frozen=True)
class Submission:
    """The job of a sweep.

    Attributes:
        name: the sweep's.
        words: what follows `forever sweep` in the job.
        digest: twelve hex digits that change with anything that the job does.
        code: the digest of the program that is to run it.
        extra: environment variables that the user asked for.
    """

    name: str
    words: tuple[str, ...]
    digest: str
    code: str
    extra: Mapping[str, str] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """Names the job: another call for the same sweep, arguments and code finds it by this."""
        name = _NO_NAME.sub("-", slug(self.name).lower()).strip("-")[:_LONGEST_NAME].strip("-")
        return f"forever-{name}-{self.digest}"

    @property
    def command(self) -> list[str]:
        """The program that runs on the head node, with its arguments.

        A console script could be that of another copy of the code; a module is that of the job.
        """
        return ["python", "-m", "forever.cli.start", "sweep", *self.words]

    @property
    def entrypoint(self) -> str:
        """The command as a shell reads it."""
        return shlex.join(self.command)

    @property
    def environment(self) -> dict[str, str]:
        """The variables of all processes of the job, of which each refuses to run other code."""
        return {**_ALWAYS, **self.extra, CODE: self.code}


def make_submission(
    file: SweepFile, base: RunConfig, words: Sequence[str], extra: Mapping[str, str]
) -> Submission:
    """The job of `forever sweep` with these words, which mean this sweep on this base run.

    Raises:
        InputError: there is a password or a token in them or in a variable, which the cluster
            would show, or a variable is the digest of the code.
    """
    if CODE in extra:
        raise InputError(f"--env {CODE}: the job's own code is in it; leave it out")
    variables = [f"{name}={value}" for name, value in extra.items()]
    secret = [text for text in (*words, *variables) if holds_secret(text)]
    secret += [text for text in variables if _is_secret_name(text.partition("=")[0])]
    for text in secret:
        raise InputError(
            f"{without_credentials(text)}: what is shown as *** looks like a password or a token, "
            "and all users of the cluster can read a job's command and variables; set it on the "
            "cluster, as MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
        )
    content = [list(words), dict(sorted(extra.items())), code()]
    content += [file.model_dump(mode="json"), base.model_dump(mode="json")]
    text = json.dumps(content, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return Submission(file.name, tuple(words), digest, code(), dict(extra))


def _is_secret_name(variable: str) -> bool:
    """Whether what a variable of this name holds is masked wherever it is shown."""
    return "***" in without_credentials(f"{variable}=0")
