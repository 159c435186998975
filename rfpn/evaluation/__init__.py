"""Evaluators by a data set's ``evaluator_type``."""

from rfpn.evaluation.build import MAIN_SCORES, TASKS, build_evaluator, build_main_evaluator

__all__ = ["MAIN_SCORES", "TASKS", "build_evaluator", "build_main_evaluator"]
