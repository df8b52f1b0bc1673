"""Pipelines of programs, found in files and modules; jobs as pipelines."""

from types import SimpleNamespace
from typing import Any

import pytest

from nyala.common.errors import AlreadyPresent, InvalidArgument, NotFound
from nyala.spark.pipelines import Pipeline
from nyala.spark.pipelines.jobs import is_done, job_pipeline, settled_by
from nyala.spark.pipelines.programs import load_pipeline

ONE = """
from nyala.spark.pipelines import Pipeline
first = Pipeline("first")
again = first

@first.step
def load(step):
    return 1
"""


def test_pipeline_of_a_file_is_the_only_one_or_is_named(tmp_path):
    path = tmp_path / "nightly.py"
    path.write_text(ONE)
    assert load_pipeline(str(path)).steps == ["load"]
    assert load_pipeline(f"{path}:again").name == "first"
    with pytest.raises(NotFound, match="no pipeline 'other'; it has: first, again"):
        load_pipeline(f"{path}:other")
    path.write_text(ONE + 'second = Pipeline("second")\n')
    with pytest.raises(InvalidArgument, match="has 2 pipelines; name one"):
        load_pipeline(str(path))
    assert load_pipeline(f"{path}:second").steps == []
    with pytest.raises(NotFound, match="there is no file"):
        load_pipeline(str(tmp_path / "none.py"))


def test_pipeline_of_a_module_is_found_from_the_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "jobs_of_test.py").write_text(ONE)
    (tmp_path / "wrong_of_test.py").write_text("import not_installed_at_all\n")
    assert load_pipeline("jobs_of_test").name == "first"
    with pytest.raises(NotFound, match="there is no module 'other_of_test'"):
        load_pipeline("other_of_test:first")
    with pytest.raises(ModuleNotFoundError, match="not_installed_at_all"):
        load_pipeline("wrong_of_test")


def test_steps_are_named_once_and_by_their_functions():
    pipeline = Pipeline("p")

    @pipeline.step
    def one(_):
        return None

    @pipeline.step(name="two")
    def one_more(_):
        return None

    assert pipeline.steps == ["one", "two"]
    assert callable(one)
    assert callable(one_more)
    with pytest.raises(InvalidArgument, match="two steps 'one'"):
        pipeline.step(one)
    with pytest.raises(InvalidArgument, match="pipeline 'a b'"):
        Pipeline("a b")
    with pytest.raises(InvalidArgument, match="has no steps"):
        Pipeline("empty", masters="m:1").run(None)


def client(*tables: str) -> Any:
    return SimpleNamespace(tables=lambda: list(tables), masters="m:1")


def test_work_of_a_job_finds_what_an_earlier_driver_has_left(tmp_path):
    new = {"table": "t", "create": True, "key": ["k"], "buckets": 2}
    assert settled_by("import", new, client()) == new
    settled = settled_by("import", new, client("t"))
    assert settled == {"table": "t", "create": False, "key": [], "buckets": 0}
    assert settled_by("copy", {"existing": False}, client())["existing"]
    assert not is_done("export", {"folder": str(tmp_path / "new")}, client())
    assert is_done("export", {"folder": str(tmp_path)}, client())
    assert is_done("restore", {"table": "t", "name": ""}, client("t"))
    assert not is_done("restore", {"table": "t", "name": "u"}, client("t"))
    assert not is_done("copy", {"target": "t"}, client("t"))


def test_drivers_of_a_job_share_a_pipeline_if_their_arguments_are_equal():
    def made(**arguments):
        return job_pipeline("copy", {"masters": "m:1", **arguments}, print, print, print)

    one = made(source="a", target="b", dry_run=False)
    assert one.name == made(target="b", source="a", dry_run=False).name
    assert one.name != made(source="a", target="c", dry_run=False).name
    assert one.steps == ["check", "work"]
    assert made(source="a").steps == ["work"]


def test_checks_of_a_job_write_nothing_and_refuse_first():
    calls: list[dict[str, Any]] = []

    def job(spark, **arguments):
        calls.append(arguments)
        raise AlreadyPresent("the table exists")

    step: Any = SimpleNamespace(spark=None, client=client())
    pipeline = job_pipeline("copy", {"masters": "m:1", "dry_run": False}, job, print, print)
    with pytest.raises(AlreadyPresent):
        pipeline.call("check", step)
    assert [c["dry_run"] for c in calls] == [True]
