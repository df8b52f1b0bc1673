"""Pipelines of named steps, of which one driver is active and others stand by. See docs/use/pipelines.md."""

from nyala.spark.pipelines.driver import PipelineRun
from nyala.spark.pipelines.pipeline import Pipeline
from nyala.spark.pipelines.step_run import StepRun

__all__ = ["Pipeline", "PipelineRun", "StepRun"]
