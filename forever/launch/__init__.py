"""Three ways to start the one task loop.

It runs in this process, as Ray Train workers, or as trials of a Ray Tune sweep.
"""

import os

# Ray reads it when it is loaded. What it starts on this machine then listens to this machine alone,
# as it does on other systems by default; a cluster of several has to listen to the network.
if not os.environ.get("RAY_ADDRESS"):
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
