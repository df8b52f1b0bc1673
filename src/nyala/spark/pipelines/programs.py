"""Pipelines of a user's own programs: `module:name`, or a Python file."""

import importlib
import os
import runpy
import sys
from collections.abc import Mapping
from typing import Any

from nyala.common.errors import InvalidArgument, NotFound
from nyala.spark.pipelines.pipeline import Pipeline

MODULE = "nyala_pipeline_program"
"""Name of the module of a file. It cannot be imported, so that Spark sends its functions to executors."""


def load_pipeline(program: str) -> Pipeline:
    """Return the pipeline of a program, which is imported.

    Args:
        program: `module:name`, where `:name` may be left out if the module has one pipeline; or the path of a
            file, which ends in .py and may be followed by `:name`.

    Raises:
        NotFound: no such module, file or name.
        InvalidArgument: the program has no pipeline, or several, and none is named.
    """
    place, _, name = program.partition(":")
    found = _of_file(place) if place.endswith(".py") else _of_module(place)
    if name:
        made = found.get(name)
        if not isinstance(made, Pipeline):
            names = ", ".join(n for n, one in found.items() if isinstance(one, Pipeline))
            raise NotFound(f"{place} has no pipeline {name!r}; it has: {names or 'none'}")
        return made
    made_there = {id(one): one for one in found.values() if isinstance(one, Pipeline)}
    if len(made_there) != 1:
        raise InvalidArgument(
            f"{place} has {len(made_there)} pipelines; name one, made with nyala.spark.pipelines.Pipeline: "
            f"{place}:NAME"
        )
    return next(iter(made_there.values()))


def _of_file(path: str) -> Mapping[str, Any]:
    if not os.path.isfile(path):
        raise NotFound(
            f"there is no file {path}; name a file, or a module as in jobs.nightly:pipeline"
        )
    return runpy.run_path(path, run_name=MODULE)


def _of_module(name: str) -> Mapping[str, Any]:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return vars(importlib.import_module(name))
    except ModuleNotFoundError as err:
        if err.name is None or not name.startswith(err.name):
            raise  # an import of the program's own fails
        raise NotFound(
            f"there is no module {name!r}; name a module that Python finds from this folder, or a file: "
            "nightly.py"
        ) from None
