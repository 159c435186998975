"""What is learned from generated samples holds for samples that were not seen."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from rfpn.data.pathfinder.generator import generate_sample

EASY = {"window": 96, "padding": 9, "distractors": 2, "distractor_length": 2}


def samples(split, count):
    """Images and targets (N, 1, 48, 48) in [0, 1], targets 0 or 1."""
    pictures = [generate_sample(6, 0, index, split, **EASY)[:2] for index in range(count)]
    images, targets = (torch.from_numpy(np.stack(part)).float()[:, None] / 255 for part in zip(*pictures))
    return F.avg_pool2d(images, 2), (F.avg_pool2d(targets, 2) > 0.3).float()


def iou(found, target):
    return ((found & (target > 0)).sum() / (found | (target > 0)).sum()).item()


def test_F6_a_small_net_beats_marking_every_stroke():
    torch.manual_seed(0)
    images, targets = samples("train", 200)
    layers, channels = [], 1
    for dilation in (1, 2, 4, 8, 4, 1):
        layers += [nn.Conv2d(channels, 12, 3, padding=dilation, dilation=dilation), nn.BatchNorm2d(12), nn.ReLU()]
        channels = 12
    net = nn.Sequential(*layers, nn.Conv2d(channels, 1, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    for _ in range(60):
        chosen = torch.randint(len(images), (16,))
        loss = F.binary_cross_entropy_with_logits(net(images[chosen]), targets[chosen], pos_weight=torch.tensor(3.0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    unseen, truth = samples("test", 40)
    with torch.no_grad():
        learned = iou(net.eval()(unseen) > 0, truth)
    # both long contours and the short ones look alike; only the marker tells which one counts
    assert learned > iou(unseen > 0.3, truth) + 0.08
