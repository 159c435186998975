"""Pictures of growing contours."""

import numpy as np
import torch
from PIL import Image

from rfpn.analysis.contour_growth import contour_growth, draw_contour_growth
from rfpn.layers import HGRUCell, RecurrentLayer
from rfpn.modeling import PathfinderNet


def inputs(count=2, size=16):
    torch.manual_seed(0)
    shape = (1, size, size)
    return [{"image": torch.randint(256, shape), "sem_seg": torch.randint(2, shape[1:])} for _ in range(count)]


def test_growth_is_the_target_probability_of_every_step():
    model, batch = PathfinderNet(layer=RecurrentLayer(HGRUCell(4, 3), 3), channels=4).eval(), inputs()
    growth = contour_growth(model, batch, 3)
    assert growth.shape == (3, 2, 16, 16)
    last = torch.stack([x["sem_seg"] for x in model(batch)]).softmax(1)[:, 1].detach()
    np.testing.assert_allclose(growth[-1], last.numpy(), rtol=1e-5)


def test_picture_shows_the_drawn_steps(tmp_path):
    growth = np.zeros((4, 2, 16, 16), np.float32)
    draw_contour_growth(str(tmp_path / "dark.png"), inputs(), growth, [1, 4])
    growth[3] = 1
    draw_contour_growth(str(tmp_path / "light.png"), inputs(), growth, [1, 4])
    dark, light = (np.asarray(Image.open(tmp_path / f"{name}.png").convert("L"), float) for name in ("dark", "light"))
    changed = np.abs(dark - light).mean(axis=0) > 50
    assert dark.shape == light.shape
    assert changed[3 * len(changed) // 4 :].any() and not changed[: 3 * len(changed) // 4].any()
