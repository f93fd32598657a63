"""report.json: the numbers of a report for programs, and what the ledger (scripts/ledger.py) is
written from."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import Any

import yaml

from forever.config.run import RunConfig
from forever.report.analyses import analyses
from forever.report.bootstrap import Estimate
from forever.report.reading import read_mapping
from forever.report.rows import Row
from forever.report.study import Study
from forever.sweeps.named_runs import scale_of
from forever.sweeps.published import Published

SCHEMA_VERSION = 2  # 1: no runs in estimates; rates of forgetting without an interval


def numbers(study: Study) -> dict[str, Any]:
    """Everything a report says in numbers. OP in percent, BWT and differences in points, intervals
    at 95 %.

    Each estimate has the number of runs that it is the mean of: a difference is of those that the
    reference has, too.
    """
    finished = [run for run in study.runs if run.result is not None]
    assert study.example is not None
    where = [environment for run in finished for environment in run.environments]
    return {
        "schema_version": SCHEMA_VERSION,
        "name": study.name,
        "reference": study.reference,
        "scale": scale_of(
            RunConfig.parse(read_mapping(study.example.directory.config, yaml.safe_load))
        ),
        "planned": len(study.runs),
        "finished": len(finished),
        "models": _distinct([run.settings["model.name"] for run in finished]),
        "seeds": sorted({run.seed for run in finished}),
        "revisions": _distinct([one.get("revision") for one in where]),
        "hardware": _distinct(
            [
                f"{one['gpus'][0] if one['gpus'] else one['cpu']}, {one['cores']} cores"
                for one in where
            ]
        ),
        "commands": _distinct([shlex.join(one["argv"]) for one in where]),
        "parts": [
            {
                "benchmark": part.benchmark,
                "rows": [_row(part, row) for row in part.rows],
                "analyses": analyses(part),
            }
            for part in study.parts
        ],
    }


def _row(study: Study, row: Row) -> dict[str, Any]:
    compared, paper = row.comparison, row.paper
    return {
        "variant": row.variant,
        "paper_variant": study.paper.get(row.variant, row.variant),
        "bound": row.bound,
        "reference": row.reference,
        "runs": len(row.runs),
        "planned": row.planned,
        "op": _estimate(compared.op if compared else None),
        "bwt": _estimate(compared.bwt if compared else None),
        "forgetting": row.forgetting,
        "difference": _estimate(compared.difference if compared else None),
        "bwt_difference": _estimate(compared.bwt_difference if compared else None),
        "p_holm": compared.p_holm if compared else None,
        "verdict": compared.verdict if compared else None,
        "resolution": compared.resolution if compared else None,
        "paper": None if paper is None else _paper(row, paper),
        "agreement": row.agreement,
        "idle": row.idle,
        "same_setting": row.same_setting,
        "replays": row.events("replay"),
        "consolidations": row.events("consolidation"),
        "replayed_rows": row.replayed_rows,
        "updates": row.updates,
        "seconds": row.seconds,
        "gpu_hours": row.gpu_hours,
    }


def _paper(row: Row, paper: Published) -> dict[str, float | None]:
    differences = {"difference": row.paper_difference, "bwt_difference": row.paper_bwt_difference}
    return {"op": paper.op, "bwt": paper.bwt, **differences}


def _estimate(estimate: Estimate | None) -> dict[str, Any] | None:
    return None if estimate is None else asdict(estimate)


def _distinct(values: list[Any]) -> list[Any]:
    return list(dict.fromkeys(value for value in values if value is not None))
