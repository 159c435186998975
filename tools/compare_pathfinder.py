"""Compares generated Pathfinder samples with reference images: shares, lengths, angles, distances, crossings, looks.

Everything is measured on the pictures alone, the same way on both sides. The reference is an .npz with arrays
``image_<L>`` and ``target_<L>``, uint8 (N, 300, 300), or a folder with curv_contour_length_<L> as generators write it.

    python tools/compare_pathfinder.py --reference samples.npz --num 40 --sheet sheet.png
    python tools/compare_pathfinder.py --reference /data/pathfinder/train --lengths 14 --num 40 --seed 1
"""

import argparse
import os
import sys

import numpy as np
from PIL import Image
from scipy import ndimage

from arguments import natural, png_file, positive
from rfpn.data.files import read_npz
from rfpn.data.images import read_image, read_label_map
from rfpn.data.pathfinder.generator import generate_sample
from rfpn.data.pathfinder.registration import load_pathfinder
from rfpn.data.pathfinder.render import target_share
from rfpn.programs import one_line_errors

EIGHT = np.ones((3, 3))
LINK_DISTANCE = (8.0, 13.5)  # pixels between the centres of neighbours on a contour
LINK_ANGLE = np.radians(38)  # between a dash and the line to its neighbour
WINDOW = 300  # pixels; the distances above are of this size


def find_dashes(image: np.ndarray) -> np.ndarray:
    """Strokes of a picture by brightness-weighted moments: (D, 5) of x, y, angle, length, area."""
    labels, _ = ndimage.label(image > 100, EIGHT)
    dashes = []
    for number, box in enumerate(ndimage.find_objects(labels), 1):
        box = tuple(slice(max(side.start - 2, 0), side.stop + 2) for side in box)
        own = ndimage.binary_dilation(labels[box] == number, EIGHT) & np.isin(labels[box], (0, number))
        weight = (image[box] * own / 255.0).ravel()
        y, x = (axis.ravel() for axis in np.mgrid[box])
        centre = np.average(x, weights=weight), np.average(y, weights=weight)
        values, vectors = np.linalg.eigh(np.cov(np.stack([x, y]), aweights=weight, bias=True))
        angle = np.arctan2(vectors[1, 1], vectors[0, 1])
        dashes.append((*centre, angle, np.sqrt(12 * values[1]), weight.sum()))
    return np.array(dashes).reshape(-1, 5)


def split_target(image: np.ndarray, target: np.ndarray):
    """The marker's centre (2,), the target's visible dashes from the marker on (L - 1, 5), all others (D, 5).

    Raises:
        ValueError: there is no marker, or there are too few dashes to measure anything.
    """
    core = ndimage.binary_erosion(target > 0, np.ones((5, 5)))
    if not core.any():
        raise ValueError("its target has no marker, a disc of radius 5")
    marker = np.array(ndimage.center_of_mass(core))[::-1]
    dashes = find_dashes(image)
    dashes = dashes[np.argsort(np.hypot(*(dashes[:, :2] - marker).T))][1:]
    x, y = np.round(dashes[:, :2]).astype(int).T
    mine = ndimage.binary_dilation(target > 0)[y, x]
    chain, rest, here = [], list(dashes[mine]), marker
    while rest:
        nearest = int(np.argmin([np.hypot(*(dash[:2] - here)) for dash in rest]))
        chain.append(rest.pop(nearest))
        here = chain[-1][:2]
    others = dashes[~mine]
    if len(chain) < 2 or not len(others):
        raise ValueError(f"{len(chain)} dashes on the target and {len(others)} beside it are too few")
    return marker, np.array(chain), others


def link_contours(dashes: np.ndarray) -> list:
    """Index lists of the contours that good continuation joins, best links first."""
    links = []
    for i in range(len(dashes)):
        step = dashes[:, :2] - dashes[i, :2]
        distance = np.hypot(*step.T)
        for j in np.flatnonzero((distance > LINK_DISTANCE[0]) & (distance < LINK_DISTANCE[1])):
            if j <= i:
                continue
            bends, ends = [], []
            for k, sign in ((i, 1), (j, -1)):
                cosine = sign * (step[j] @ [np.cos(dashes[k, 2]), np.sin(dashes[k, 2])]) / distance[j]
                bends.append(np.arccos(min(abs(cosine), 1)))
                ends.append((k, cosine > 0))
            if max(bends) < LINK_ANGLE:
                links.append((0.1 * abs(distance[j] - 10.8) + sum(bends) + abs(bends[0] - bends[1]), *ends))
    next_to = {}
    for _, a, b in sorted(links):
        if a not in next_to and b not in next_to:
            next_to[a], next_to[b] = b, a
    contours, seen = [], set()
    for k in range(len(dashes)):
        for side in (True, False):  # a chain starts where a dash has no neighbour on this side
            if k in seen or (k, side) in next_to:
                continue
            chain, end = [k], (k, not side)
            while end in next_to and next_to[end][0] not in chain:
                k_next, entry = next_to[end]
                chain.append(k_next)
                end = (k_next, not entry)
            seen.update(chain)
            contours.append(chain)
    return contours


def axis_distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Distances (A, B) between axes 5 pixels long, to about 0.2 pixels."""
    def points(dashes):
        direction = np.stack([np.cos(dashes[:, 2]), np.sin(dashes[:, 2])], axis=1)
        return dashes[:, None, :2] + np.linspace(-2.5, 2.5, 9)[:, None] * direction[:, None]

    gaps = points(a)[:, None, :, None] - points(b)[None, :, None, :]
    return np.sqrt((gaps**2).sum(-1)).min((2, 3))


def count_crossings(a: np.ndarray, b: np.ndarray) -> int:
    """Crossings of two polylines (A, 2) and (B, 2)."""
    def side(p, q, r):
        return (q[..., 0] - p[..., 0]) * (r[..., 1] - p[..., 1]) - (q[..., 1] - p[..., 1]) * (r[..., 0] - p[..., 0])

    p, q, r, s = a[:-1, None], a[1:, None], b[None, :-1], b[None, 1:]
    return int(((side(p, q, r) * side(p, q, s) < 0) & (side(r, s, p) * side(r, s, q) < 0)).sum())


def measure(image: np.ndarray, target: np.ndarray, length: int) -> dict:
    """Statistics of one sample, each a list of numbers."""
    marker, chain, others = split_target(image, target)
    step = np.diff(chain[:, :2], axis=0)
    heading = np.arctan2(step[:, 1], step[:, 0])
    turn = np.degrees(np.angle(np.exp(1j * np.diff(heading))))
    contours = [others[c] for c in link_contours(others)]
    long = [c for c in contours if len(c) >= 0.8 * length]
    paths = [np.vstack([marker, chain[:, :2]])] + [c[:, :2] for c in contours if len(c) > 1]
    return {
        "share of target at 300 (%)": [100 * (target > 0).mean()],
        "share of target at 150 (%)": [100 * target_share(target)],
        "mean brightness": [image.mean()],
        "share of bright pixels (%)": [100 * (image > 127).mean()],
        "dashes beside the target": [len(others)],
        "target dashes in sight": [len(chain)],
        "length of a dash": chain[:, 3],
        "area of a dash": chain[:, 4],
        "step between dashes": np.hypot(*step.T),
        "turn (degrees)": abs(turn),
        "marker to second dash": [np.hypot(*(chain[0, :2] - marker))],
        "marker to last dash": [np.hypot(*(chain[-1, :2] - marker))],
        "marker from centre": abs(marker - image.shape[0] / 2),
        "others from centre": abs(others[:, :2] - image.shape[0] / 2).ravel(),
        "marker to start of second contour": [
            min(np.hypot(*(c[k, :2] - marker)) for k in (0, -1)) for c in long
        ],
        "marker to nearest other dash": [np.hypot(*(others[:, :2] - marker).T).min()],
        "target to nearest other dash": axis_distances(chain, others).min(1),
        "crossings in a sample": [sum(count_crossings(a, b) for k, a in enumerate(paths) for b in paths[:k])],
    }


def measure_all(images, targets, length: int, origin: str = "generated") -> dict:
    """Statistics of a set: one array of numbers for each name. Raises ValueError naming a sample that has none."""
    rows = []
    for index, (image, target) in enumerate(zip(images, targets)):
        try:
            rows.append(measure(image, target, length))
        except ValueError as error:
            raise ValueError(f"{origin}: image_{length}[{index}]: {error}") from None
    return {name: np.concatenate([np.asarray(row[name], float) for row in rows]) for name in rows[0]}


def sheet(image_rows: list) -> Image.Image:
    """Rows of pictures (H, W), with a grey line between them."""
    rows = [np.hstack([np.pad(picture, 1, constant_values=80) for picture in row]) for row in image_rows]
    widest = max(row.shape[1] for row in rows)
    return Image.fromarray(np.vstack([np.pad(row, ((0, 0), (0, widest - row.shape[1]))) for row in rows]))


@one_line_errors()
def main(argv=None) -> None:
    """Measure reference and generated samples, print a row for each, draw the sheet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", required=True, help=".npz with image_<L> and target_<L>, or a folder of folders")
    parser.add_argument("--lengths", type=int, nargs="+", default=[9, 14, 20, 25], help="(default: 9 14 20 25)")
    parser.add_argument("--num", type=positive, default=40, help="samples to make, and to read from a folder (default: 40)")
    parser.add_argument("--seed", type=natural, default=0, help="of the generated samples, not the reference's (default: 0)")
    parser.add_argument("--sheet", type=png_file, help="PNG to write: reference above, generated below, for each length")
    args = parser.parse_args(argv)
    reference = read_reference(args.reference, args.lengths, args.num)
    measured = {}
    for length in args.lengths:
        pictures = reference[f"image_{length}"], reference[f"target_{length}"]
        measured[length] = measure_all(*pictures, length, f"--reference {args.reference}")
    rows = []
    for length in args.lengths:
        samples = [generate_sample(length, args.seed, index)[:2] for index in range(args.num)]
        images, theirs, ours = reference[f"image_{length}"], measured[length], measure_all(*zip(*samples), length)
        if any(np.array_equal(image, made) for image, (made, _) in zip(images, samples)):
            print(f"warning: --reference has the generated samples of length {length}: give another --seed", file=sys.stderr)
        print(f"\nlength {length}: {len(images)} reference | {len(samples)} generated; mean, 5th, 95th percentile")
        for name in theirs:
            print(f"  {name:36s}" + "   |".join(map(_cell, (theirs[name], ours[name]))))
        rows += [list(images[:5]), [image for image, _ in samples[:5]]]
    if args.sheet:
        sheet(rows).save(args.sheet)


def _cell(values: np.ndarray) -> str:
    # short contours have no turns
    numbers = (values.mean(), *np.percentile(values, (5, 95))) if len(values) else ()
    return "".join(f"{number:10.3f}" for number in numbers) or f"{'-':>10s}" * 3


def read_reference(path: str, lengths: list[int], num: int) -> dict[str, np.ndarray]:
    """Pictures of all lengths, by name; of a folder the first ``num``.

    Raises:
        OSError, ValueError: naming the file or array that is missing or holds no such pictures.
    """
    if not os.path.exists(path):
        raise FileNotFoundError(f"--reference {os.path.abspath(path)} does not exist")
    names = [f"{kind}_{length}" for length in lengths for kind in ("image", "target")]
    arrays = _read_folders(path, lengths, num) if os.path.isdir(path) else read_npz(path)
    if missing := [name for name in names if name not in arrays]:
        raise ValueError(f"--reference {path} has no {', '.join(missing)}; see --lengths")
    for name in names:
        found = arrays[name]
        if found.dtype != np.uint8 or found.shape[1:] != (WINDOW, WINDOW) or not len(found):
            wanted = f"uint8 (N, {WINDOW}, {WINDOW}), N at least 1"
            raise ValueError(f"--reference {path}: {name} must be {wanted}; it is {found.dtype} {found.shape}")
    for length in lengths:
        images, targets = (len(arrays[f"{kind}_{length}"]) for kind in ("image", "target"))
        if images != targets:
            raise ValueError(f"--reference {path}: {images} in image_{length}, {targets} in target_{length}")
    return {name: arrays[name] for name in names}


def _read_folders(path: str, lengths: list[int], num: int) -> dict[str, np.ndarray]:
    arrays = {}
    for length in lengths:
        records = load_pathfinder(os.path.join(path, f"curv_contour_length_{length}"), stop=num)
        images = [read_image(record["file_name"], "L")[..., 0] for record in records]
        targets = [read_label_map(record["sem_seg_file_name"]) for record in records]
        for kind, pictures in (("image", images), ("target", targets)):
            if len({picture.shape for picture in pictures}) > 1:
                raise ValueError(f"--reference {path}: pictures of length {length} differ in size")
            arrays[f"{kind}_{length}"] = np.stack(pictures)
    return arrays


if __name__ == "__main__":
    main()
