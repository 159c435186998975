"""Proposals that are not finite, for which Detectron2's RPN ends a training at once, on one process alone."""

import contextlib
import inspect
from typing import Iterator

from detectron2.modeling.proposal_generator import rpn


@contextlib.contextmanager
def finite_proposals() -> Iterator[list[FloatingPointError]]:
    """Let the RPN leave out proposals that are not finite, as in evaluation; yields the errors that it raised for them."""
    find, left_out = rpn.find_top_rpn_proposals, []

    def find_finite(*arguments, **named):
        """As Detectron2's; where some are not finite, what it finds among the others."""
        try:
            return find(*arguments, **named)
        except FloatingPointError as error:
            left_out.append(error)
            given = inspect.signature(find).bind(*arguments, **named).arguments
            return find(**{**given, "training": False})

    rpn.find_top_rpn_proposals = find_finite
    try:
        yield left_out
    finally:
        rpn.find_top_rpn_proposals = find
