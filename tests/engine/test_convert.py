"""Released mask heads hold their cell twice, or once."""

import numpy as np
import pytest
import torch

from rfpn.engine.convert import HEAD, convert_released
from tests.modeling.test_mask_head import head


@pytest.fixture
def released(reference):
    """The released head's tensors by name, with both copies of the cell."""
    arrays = np.load(reference / "golden" / "released_mask_head_c64.npz")
    state = {k.removeprefix("state_dict/"): torch.from_numpy(arrays[k]) for k in arrays if k.startswith("state")}
    assert all(any(name.startswith(HEAD + copy) for name in state) for copy in ("recurrent.", "mask_fcn_rnn."))
    return state


@pytest.mark.parametrize("left_out", ["recurrent.", "mask_fcn_rnn."])
def test_one_copy_of_the_cell_is_enough(released, left_out):
    module = head(64, num_classes=5, deconv_channels=64, norm_groups=32)
    whole = convert_released(released, module)
    half = convert_released({n: v for n, v in released.items() if not n.startswith(HEAD + left_out)}, module)
    assert half.keys() == whole.keys() and all(torch.equal(half[name], whole[name]) for name in whole)


def test_a_tensor_that_one_copy_lacks_is_named(released):
    del released[HEAD + "mask_fcn_rnn.mu"]
    with pytest.raises(ValueError, match="its two copies of the cell differ in mu$"):
        convert_released(released, head(64, norm_groups=32))
