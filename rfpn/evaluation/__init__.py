"""Evaluators by a data set's ``evaluator_type``."""

from rfpn.evaluation.build import build_evaluator

__all__ = ["build_evaluator"]
