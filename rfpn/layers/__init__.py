"""Recurrent cells and the layer that runs them. Needs torch alone.

    from rfpn.layers import HGRUCell, RecurrentLayer
    layer = RecurrentLayer(HGRUCell(25), steps=20, gradient="rbp", lipschitz=True)
    hidden, penalty, steps, residual = layer(x)
"""

from rfpn.layers.conv_lstm import ConvLSTMCell
from rfpn.layers.hgru import GALAHGRUCell, HGRUCell
from rfpn.layers.options import ADJOINTS, GRADIENTS, SOLVERS
from rfpn.layers.recurrent import RecurrentLayer, RecurrentOutput
from rfpn.layers.released import cell_state_dict

__all__ = [
    "ADJOINTS",
    "ConvLSTMCell",
    "GALAHGRUCell",
    "GRADIENTS",
    "HGRUCell",
    "RecurrentLayer",
    "RecurrentOutput",
    "SOLVERS",
    "cell_state_dict",
]
