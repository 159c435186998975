import numpy as np
import pycocotools.mask as mask_util
import pytest

from rfpn.data.rle import fits


def random_mask(seed):
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(1, 60, 2).tolist())
    kind = rng.choice(["noise", "box", "empty", "full"])
    mask = {"noise": rng.random(shape) < rng.random(), "full": np.ones(shape)}.get(kind, np.zeros(shape))
    if kind == "box":
        mask[: shape[0] // 2, shape[1] // 3 :] = 1
    return np.asfortranarray(mask, dtype=np.uint8)


@pytest.mark.parametrize("seed", range(40))
def test_every_mask_of_pycocotools_fits(seed):
    mask = random_mask(seed)
    rle = mask_util.encode(mask)
    assert fits(rle, mask.shape)
    assert fits({**rle, "counts": rle["counts"].decode()}, list(mask.shape))
    assert not fits(rle, (mask.shape[0] + 1, mask.shape[1]))


def test_large_runs_fit():
    mask = np.zeros((3000, 4000), dtype=np.uint8, order="F")
    mask[10:2000, 5:3900] = 1
    assert fits(mask_util.encode(mask), mask.shape)


def test_what_fits_is_what_pycocotools_reads_alike():
    """Random damage: a mask either is refused, or decodes and encodes to one of the same runs."""
    rng = np.random.default_rng(0)
    accepted = 0
    for seed in range(40):
        mask = random_mask(seed)
        whole = mask_util.encode(mask)["counts"]
        for _ in range(25):
            counts = bytearray(whole)
            counts[rng.integers(len(counts))] = rng.integers(32, 127)
            if rng.random() < 0.3:
                del counts[rng.integers(len(counts)) :]
            damaged = {"size": list(mask.shape), "counts": bytes(counts)}
            if fits(damaged, mask.shape):
                accepted += 1
                decoded = mask_util.decode(damaged)
                assert mask_util.area(damaged) == decoded.sum()
    assert accepted > 0


# the last holds runs of 20 and of -4 pixels
@pytest.mark.parametrize("counts", [b"", b"0", b"o", b"\x7f", b"PPPPPPPP0", "\u00e9", None, 5, [1, 2], b"d0L"])
def test_damaged_counts_do_not_fit(counts):
    assert not fits({"size": [4, 4], "counts": counts}, (4, 4))
    assert not fits({"counts": b"`0"}, (4, 4))
