"""What `hubspoke warm` does with its flags: start, follow, print, and say it by the exit status.

0: all that was asked for is so, or the job goes on in the background; 1: it is not so; 130: left
by Ctrl-C, the job goes on at the spoke.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

from rich.console import Console

from hubspoke.report.render_warm import progress_bar, render_job, render_jobs
from hubspoke.report.warm import Job, WarmClient, WarmRequest, succeeded

INTERRUPTED = 130


class WarmCommand:
    """One run of the command. Results go to stdout, the bar and what failed to stderr."""

    def __init__(self, url: str, *, as_json: bool) -> None:
        self._client = WarmClient(url)
        self._as_json = as_json
        self._errors = Console(stderr=True)

    def jobs(self) -> int:
        """List all jobs."""
        jobs = self._client.jobs()
        self._print({"jobs": jobs}, lambda: render_jobs(jobs))
        return 0

    def cancel(self, job_id: str) -> int:
        job = self._client.cancel(job_id)
        self._print(job, lambda: render_job(job))
        return 0

    def run(self, request: WarmRequest, *, wait: bool) -> int:
        """wait: until it has ended; otherwise until its objects are counted, so that a job that
        is refused is told now."""
        job = self._client.start(request)
        try:
            with progress_bar(self._errors) as show:
                job = self._client.follow(job, show, until_known=not wait)
        except KeyboardInterrupt:
            print(f"hubspoke warm: {_goes_on(job)}", file=sys.stderr)
            return INTERRUPTED
        self._print(job, lambda: render_job(job))
        if job["failure"] is not None:
            print(f"hubspoke warm: {job['failure']['message']}", file=sys.stderr)
        if job["state"] == "running":
            if not self._as_json:
                print(_goes_on(job))
            return 0
        return 0 if succeeded(job) else 1

    def _print(self, document: Any, render: Callable[[], Any]) -> None:
        if self._as_json:
            print(json.dumps(document, indent=2))
        else:
            Console().print(render())


def _goes_on(job: Job) -> str:
    return f"{job['id']} goes on at the spoke; `hubspoke warm --cancel {job['id']}` stops it"
