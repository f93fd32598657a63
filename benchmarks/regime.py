"""What a run met within its tasks, from its journal."""

from statistics import fmean

from forever.report.run import Run


def pace(run: Run) -> float:
    """The mean length of a task's last updates, a fifth, over that of the first day's."""
    days = run.settings["method.day_steps"]
    return fmean(
        fmean(task[-len(task) // 5 :]) / fmean(task[:days]) for task in norms(run).values()
    )


def norms(run: Run) -> dict[str, list[float]]:
    """How far each update of a task moves, by task."""
    by_task: dict[str, list[float]] = {}
    for line in run.steps:
        if line["kind"] == "task":
            by_task.setdefault(line["task"], []).append(line["update_norm"])
    return by_task


def day_seven(run: Run) -> float:
    """The mean place of day 7 in a task, in percent of its updates; 100 if it never comes."""
    updates = norms(run)
    places = [
        100 * event["step"] / len(updates[event["task"]])
        for event in run.events
        if event.get("day") == 7
    ]
    return fmean(places) if places else 100.0


def share_of_tasks(run: Run, day: int) -> float:
    """In how many of the tasks that have a memory a day comes."""
    return sum(event.get("day") == day for event in run.events) / (len(norms(run)) - 1)


def penalty_over_loss(run: Run) -> float:
    """The mean penalty of the updates that have one, over their mean loss."""
    held = [line for line in run.steps if line["penalty"]]
    return fmean(line["penalty"] for line in held) / fmean(line["loss"] for line in held)
