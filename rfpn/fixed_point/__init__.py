"""Fixed points of recurrent updates and their gradients. Needs torch alone."""

from rfpn.fixed_point.anderson import anderson
from rfpn.fixed_point.implicit import implicit_gradient, replace_cotangent
from rfpn.fixed_point.iteration import (
    FixedPoint,
    iterate,
    iterate_until,
    relative_residual,
    sample_norm,
    stopping_tolerance,
    unconverged,
)
from rfpn.fixed_point.linear_solve import LinearSolution, linear_solve
from rfpn.fixed_point.lipschitz import (
    column_sums,
    lipschitz_penalty,
    penalty_of_sums,
    probe_vector,
    secant_quotients,
)
from rfpn.fixed_point.neumann import NeumannSum, neumann_series

__all__ = [
    "FixedPoint",
    "LinearSolution",
    "NeumannSum",
    "anderson",
    "column_sums",
    "implicit_gradient",
    "iterate",
    "iterate_until",
    "linear_solve",
    "lipschitz_penalty",
    "neumann_series",
    "penalty_of_sums",
    "probe_vector",
    "relative_residual",
    "replace_cotangent",
    "sample_norm",
    "secant_quotients",
    "stopping_tolerance",
    "unconverged",
]
