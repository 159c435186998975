"""Evaluators by a data set's ``evaluator_type``."""

from rfpn.evaluation.build import TASKS, build_evaluator

__all__ = ["TASKS", "build_evaluator"]
