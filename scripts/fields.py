"""What the fields of result.json and of steps.jsonl are, for docs/reference/files.md.

A test holds these names to those that runs write (tests/docs/test_reference.py).
"""

RESULT = {
    "schema_version": "Of the folder's files; a release reads those that it knows.",
    "key": "The run's name, made of its configuration.",
    "fingerprint": "Twelve digits of the SHA-256 of all that decides the result.",
    "method": "`method.name`.",
    "seed": "`seed`.",
    "benchmark": "`data.benchmark`.",
    "order": "The name of the order of tasks, or the names of its tasks, joined by `-`.",
    "tasks": "The tasks in the order in which they were learned: the rows of `matrix`.",
    "stages": "What was trained, one after the other: the columns of `matrix`. Joint training has "
    "one stage.",
    "metrics": "By task: `exact_match` or `rouge_l`.",
    "data": "By task: the digest of its examples.",
    "rows": "By task: how many examples were learned (`train`) and scored (`test`).",
    "matrix": "The score on each task after each stage, in percent; null was not measured.",
    "op": "The mean of the last column: overall performance, in percent.",
    "bwt": "Backward transfer: the mean of what tasks gained since they were learned, in points.",
    "fwt": "Forward transfer, in points; null without `evaluation.forward_transfer`.",
    "forgetting": "How far tasks end below their best, the mean, in points.",
    "notes": "By stage: what the method noted, such as `tau_day`, the length of its model day, "
    "`day_7`, the update at which day 7 came, `scheduled_events`, and `examples` by kind.",
    "examples": "How many examples were trained on in all: those of tasks, replayed ones, those of "
    "the task in the place of replayed ones (`padded`), those that were only looked at (`probed`), "
    "those that the model wrote (`written`).",
    "budget": "Whether tasks replayed what `budget` allows: `exact`, `under`, `over`; null without "
    "one.",
    "events": "By stage: how many events of each kind there were.",
    "updates": "How many updates there were of each kind: `task`, `replay`, `consolidation`.",
    "rows_seen": "How many examples these updates had.",
    "tokens": "How many tokens they had, prompts included.",
    "parameters": "How many numbers were `trained`, and are `stored` to go on or to answer.",
    "peak_memory_bytes": "The most that the leading process held where it computes.",
    "world_size": "How many processes trained it.",
    "at_once": "How many examples were computed at once, and how many answers decoded, where "
    "memory had run out.",
    "model": "The digests of the backbone's files, and of the sentence encoder's of SSR.",
    "seconds": "By phase: how long it took.",
    "journal": "The digests of steps.jsonl and events.jsonl.",
    "weights": "The digests of the files in `adapter/` or `model/`, by their names.",
}
STEP = {
    "task": "The task that is learned.",
    "step": "Which of the task's own updates is the last, from 1.",
    "planned": "How many of those the task has.",
    "update": "Which update of the task it is, replays counted.",
    "epoch": "Which pass over the task's or the memory's examples it belongs to, from 0.",
    "kind": "`task`, `replay` (at a day), or `consolidation` (at the end of the task).",
    "loss": "The mean cross-entropy of the supervised tokens, in nats; null if it was left out.",
    "penalty": "What was added to it, before the update.",
    "update_norm": "Delta: how far the trainable parameters moved.",
    "beta": "The weight of the penalty; null without one.",
    "lr": "The learning rate.",
    "rows": "Its examples.",
    "tokens": "Their tokens, prompts included.",
    "skipped": "True if it was left out, since a number was not finite; else not there.",
    "tau": "FOREVER: the distance moved since the task began, the sum of Delta over its updates.",
    "mu": "FOREVER: the moving average of Delta, the pace of learning.",
    "days": "FOREVER: what the clock shows, in model days.",
    "next_day": "FOREVER: the day of the next replay; null before there is a memory.",
}
