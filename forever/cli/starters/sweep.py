"""A sweep to begin with: every field of such a file, those that are optional as comments."""

TEXT = """\
# A sweep: forever sweep {file}
# What it costs: forever plan {file}; how many seeds show 2 points: forever plan {file} --detect 2
#
# Every variant is the base run but for the keys that it names, so an ablation is what differs.
title: My ablation
question: Does the first replay come too early?

# The run from which all variants differ, by scale: a name or a YAML file that lies beside this one.
# --on takes another one.
base:
  mini: mini/forever
  # paper: my-run.yaml

# Seeds by scale; --seeds takes others. One seed judges nothing, three are the least.
seeds: {{mini: [0, 1, 2]}}

# With what the others are compared; without this line it is `base`.
reference: base

# Dotted keys as in `forever run`; `forever init` writes a file that has them all.
variants:
  base: {{}}
  late: {{method.days: [4, 7, 15, 30]}}
  once: {{method.days: [7]}}
  # Another method with its settings at the base's scale, whose fields may follow:
  # plain: {{method: finetune}}

# On which orders of tasks, of the paper's benchmarks; without it, on the base's own.
# orders: [superni]

# What the report shows; without it, what reports usually show (docs/verbs/sweep.md has the list).
# figures: [intervals, accuracy, matrices, timelines]
"""


def sweep_text(file: str) -> str:
    """The text of a sweep in the file of that name."""
    return TEXT.format(file=file)
