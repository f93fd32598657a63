"""Print what a run replayed in each task after the first, as `budget.examples` of other runs.

python -m scripts.own_dose runs/own/forever-o1-s100-0a1b2c3d
"""

import json
import sys
from pathlib import Path


def own_dose(run: Path) -> list[int]:
    """Return the replayed examples of each task after the first, views counted."""
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    return [result["notes"][task]["examples"]["replayed"] for task in result["stages"][1:]]


if __name__ == "__main__":
    print(json.dumps(own_dose(Path(sys.argv[1])), separators=(",", ":")))
