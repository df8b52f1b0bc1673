"""Jobs with stand-by drivers: a pipeline of two steps, the checks of the job and its work."""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nyala.client.client import Client
from nyala.spark.pipelines.pipeline import Pipeline
from nyala.spark.pipelines.step_run import StepRun

CHECK, WORK = "check", "work"
DONE_BY = {"export": ("folder",), "restore": ("table", "name")}
"""Jobs whose last action gives their result its name, and the arguments that tell it."""


def job_pipeline(
    name: str,
    arguments: Mapping[str, Any],
    job: Callable[..., Any],
    plain: Callable[[Any], Any],
    report: Callable[[str], object],
) -> Pipeline:
    """Return a pipeline that runs a job. Drivers with the same arguments take part in the same pipeline.

    The checks are made once in a run, before anything is written: the work may be done again by another
    driver, and finds then what the first one has left.

    Args:
        name: of the job.
        arguments: of its function.
        job: the function.
        plain: returns a result as JSON.
        report: called with lines about the progress.
    """
    others = {n: v for n, v in arguments.items() if n != "masters"}
    digest = hashlib.sha256(json.dumps(others, sort_keys=True).encode()).hexdigest()[:16]
    pipeline = Pipeline(f"{name}-{digest}", masters=arguments["masters"])

    def check(step: StepRun) -> None:
        job(step.spark, **{**arguments, "dry_run": True}, report=report)

    def work(step: StepRun) -> Any:
        if is_done(name, arguments, step.client):
            return {**{n: arguments[n] for n in DONE_BY[name]}, "done": "by an earlier driver"}
        settled = settled_by(name, arguments, step.client)
        if name == "import":
            settled["operation"] = settled["job_id"] or f"{pipeline.name} run {step.run}"
            if settled["atomic"] and not settled["job_id"]:
                settled["job_id"] = step.key()
        return plain(job(step.spark, **settled, report=report))

    if "dry_run" in arguments:
        pipeline.step(name=CHECK)(check)
    pipeline.step(name=WORK)(work)
    return pipeline


def settled_by(name: str, arguments: Mapping[str, Any], client: Client) -> dict[str, Any]:
    """Return the arguments of the work of a job that an earlier driver may have begun.

    Args:
        name: of the job.
        arguments: of its function.
        client: of the cluster.
    """
    settled = dict(arguments)
    if name == "copy":
        settled["existing"] = True
    elif name == "import" and settled["create"] and settled["table"] in client.tables():
        settled |= {"create": False, "key": [], "buckets": 0}
    return settled


def is_done(name: str, arguments: Mapping[str, Any], client: Client) -> bool:
    """Return whether an earlier driver has done the work of a job; its checks have found no such result.

    Args:
        name: of the job.
        arguments: of its function.
        client: of the cluster.
    """
    if name == "export":
        return Path(arguments["folder"]).exists()
    if name == "restore":
        return (arguments["name"] or arguments["table"]) in client.tables()
    return False
