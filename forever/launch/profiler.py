"""Where the time of a run goes: `forever run --profile` writes a page, and a trace of some updates.

The trace opens in https://ui.perfetto.dev or chrome://tracing.
"""

import os
import time
from collections.abc import Mapping
from typing import Any

import psutil

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # no lines of its own on stderr
import torch
from torch.profiler import profile, schedule

from forever.data.tasks import Benchmark
from forever.files import write_text
from forever.runs.directory import RunDirectory
from forever.runs.tracking import Tracker

SKIPPED, WARM, TRACED = 20, 2, 20  # updates; the first ones allocate
_SHOWN = 25  # operators

_PAGE = """# Where the time went

Wall time from the start of the process to the result, in seconds. `start` is all that comes before
the first task: imports, data, the model; `rest` is what no phase counts.

{phases}
## Inside an update

The operators of {traced} updates, after the first {skipped} of the run. What they leave of the wall
time of {update:.1f} ms an update is Python, and waiting for the device. `trace.json.gz` has every
call in order.

```
{operators}
```
"""


class Profiler(Tracker):
    """Writes `profile/profile.md` and `profile/trace.json.gz` into the folder of a run."""

    def started(self, directory: RunDirectory, benchmark: Benchmark) -> None:
        self.folder = directory.path / "profile"
        self.folder.mkdir(exist_ok=True)
        self.start = _age()
        self.operators, self.traced_s = "the run was too short to trace any", 0.0
        phases = schedule(wait=SKIPPED, warmup=WARM, active=TRACED, repeat=1)
        self.updates = 0
        self.profile = profile(schedule=phases, on_trace_ready=self._keep, acc_events=True)
        self.profile.start()

    def step(self, line: Mapping[str, Any]) -> None:
        self.updates += 1
        if self.updates == SKIPPED + WARM:
            self.began = time.perf_counter()
        if self.updates == SKIPPED + WARM + TRACED:
            self.traced_s = time.perf_counter() - self.began
        self.profile.step()

    def _keep(self, traced: profile) -> None:
        if self.traced_s:
            by = "self_cuda_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
            self.operators = traced.key_averages().table(by, _SHOWN, max_name_column_width=60)
            traced.export_chrome_trace(str(self.folder / "trace.json.gz"))

    def finished(self, result: Mapping[str, Any]) -> None:
        self.profile.stop()
        seconds = {"start": self.start, **result["seconds"]}
        whole = _age()
        seconds["rest"] = whole - sum(seconds.values())
        lines = ["| phase | seconds | share |", "|---|---:|---:|"]
        for phase, spent in seconds.items():
            lines.append(f"| {phase} | {spent:.1f} | {spent / whole:.0%} |")
        page = _PAGE.format(
            phases="\n".join(lines) + "\n",
            traced=TRACED,
            skipped=SKIPPED + WARM,
            update=1000 * self.traced_s / TRACED,
            operators=self.operators.strip(),
        )
        write_text(self.folder / "profile.md", page)


def _age() -> float:
    """Seconds since this process began."""
    return time.time() - psutil.Process().create_time()
