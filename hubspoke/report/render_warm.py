"""Warm jobs for people: a bar while they run, a line or a table when they have ended."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from hubspoke.report.render import number, percent, size

_SHOWN = 10


@contextmanager
def progress_bar(console: Console) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Shows the job it is given, again and again; nothing if the console is no terminal."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[numbers]}", markup=False),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None, numbers="")

        def show(job: Mapping[str, Any]) -> None:
            if job["state"] == "matching":
                progress.update(task, description="matching", numbers=_objects(job["objects"]))
                return
            progress.update(
                task,
                description=job["id"],
                total=max(job["bytes"], 1),
                completed=job["cached_bytes"] if job["bytes"] else 1,
                numbers=_numbers(job),
            )

        yield show


def _objects(count: int) -> str:
    return f"{number(count)} object{'' if count == 1 else 's'}"


def _numbers(job: Mapping[str, Any]) -> str:
    parts = [
        f"{number(job['cached_objects'])}/{_objects(job['objects'])}",
        f"{size(job['cached_bytes'])} of {size(job['bytes'])}",
    ]
    if job["bytes_per_second"] is not None:
        parts.append(f"{size(job['bytes_per_second'])}/s")
    if job["eta_seconds"] is not None:
        minutes, seconds = divmod(round(job["eta_seconds"]), 60)
        parts.append(f"{minutes}:{seconds:02} left")
    return ", ".join(parts)


def render_job(job: Mapping[str, Any]) -> Group:
    """What has come of a job: one line, the paths of a check, what went wrong."""
    parts: list[Any] = [Text(_line(job))]
    if job["action"] == "check" and job.get("paths"):
        parts.append(_paths(job))
    parts += [Text(f"matches nothing: {path}") for path in job["unmatched"][:_SHOWN]]
    parts += [Text(f"{p['object']}: {p['error']}") for p in job["problems"][:_SHOWN]]
    for shown, count in (("unmatched", "unmatched_count"), ("problems", "problem_count")):
        left = (job[count] or 0) - min(len(job[shown]), _SHOWN)
        if left > 0:
            parts.append(Text(f"and {number(left)} more"))
    return Group(*parts)


def _line(job: Mapping[str, Any]) -> str:
    if job["action"] == "evict" and job["state"] != "matching":
        line = f"{job['id']}: {size(job['freed_bytes'])} freed of {_objects(job['objects'])}"
        in_use = f", {size(job['in_use_bytes'])} in use" if job["in_use_bytes"] else ""
        return line + in_use
    cached = f"{size(job['cached_bytes'])} of {size(job['bytes'])} cached"
    share = f" ({percent(job['cached_fraction'])})" if job["cached_fraction"] is not None else ""
    return f"{job['id']}: {job['state']}, {_objects(job['objects'])}, {cached}{share}"


def _paths(job: Mapping[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("path", overflow="fold", ratio=1)
    for name in ("objects", "bytes", "cached", ""):
        table.add_column(name, justify="right")
    for path in job["paths"]:
        table.add_row(
            Text(path["path"]),
            f"{number(path['cached_objects'])}/{number(path['objects'])}",
            size(path["bytes"]),
            size(path["cached_bytes"]),
            percent(path["cached_fraction"]),
        )
    return table


def render_jobs(jobs: list[dict[str, Any]]) -> Table | str:
    """All jobs a spoke remembers."""
    if not jobs:
        return "no warm jobs"
    table = Table(box=None, pad_edge=False)
    for name in ("job", "does", "state", "objects", "bytes", "cached", "seconds"):
        table.add_column(name, justify="left" if name in ("job", "does", "state") else "right")
    for job in jobs:
        table.add_row(
            job["id"],
            job["action"],
            job["state"],
            number(job["objects"]),
            size(job["bytes"]),
            percent(job["cached_fraction"]),
            number(job["seconds"], 1),
        )
    return table
