"""Print what `kubectl apply -f -` makes of `deploy/kuberay/`, with a file's values in place.

python -m scripts.kuberay mine.yaml | kubectl apply -f -
"""

import sys
from pathlib import Path

import yaml

from forever.cli.boundary import end
from forever.launch.submit.kuberay import PARTS, manifests, read_values


def main(arguments: list[str]) -> None:
    """Print the RayCluster, MLflow's server and its database, and the network policies."""
    path = Path(arguments[0]) if arguments else None
    values = read_values(path)
    objects = [each for part in PARTS for each in manifests(part, values)]
    print(yaml.safe_dump_all(objects, sort_keys=False, width=100), end="")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Exception as error:
        sys.exit(end(error))
