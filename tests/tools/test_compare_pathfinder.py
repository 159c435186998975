import cv2
import numpy as np
import pytest
from compare_pathfinder import count_crossings, find_dashes, link_contours, main, measure_all, read_reference, split_target
from PIL import Image

from rfpn.data.pathfinder.dataset import write_split
from rfpn.data.pathfinder.generator import generate_sample
from rfpn.data.pathfinder.settings import PathfinderSettings


@pytest.fixture(scope="module")
def sample():
    return generate_sample(9, 0, 0)


def test_dashes_are_found_where_they_were_drawn(sample):
    image, target, info = sample
    marker, chain, others = split_target(image, target)
    np.testing.assert_allclose(marker + 0.5, info["marker"], atol=0.3)  # pixel 0 has its centre at 0.5
    np.testing.assert_allclose(chain[:, :2] + 0.5, info["dashes"][1:9, :2], atol=0.2)
    difference = chain[:, 2] - info["dashes"][1:9, 2]
    np.testing.assert_allclose(np.sin(difference), 0, atol=0.06)
    assert len(others) == 9 + 30 and len(find_dashes(image)) == 8 + 39 + 1


def test_dashes_are_linked_to_their_contours(sample):
    image, target, _ = sample
    others = split_target(image, target)[2]
    assert sorted(map(len, link_contours(others))) == [3] * 10 + [9]


def test_crossings_are_counted():
    zigzag = np.array([[0.0, 0.0], [2.0, 2.0], [4.0, 0.0]])
    line = np.array([[-1.0, 1.0], [5.0, 1.0]])
    assert count_crossings(zigzag, line) == 2
    assert count_crossings(zigzag, line + 5) == 0


def test_statistics_of_a_set(sample):
    image, target, _ = sample
    found = measure_all([image, image], [target, target], 9)
    assert found["target dashes in sight"].tolist() == [8, 8]
    assert found["step between dashes"].max() < 11.3 and found["step between dashes"].min() > 9.8
    assert found["marker to start of second contour"] == pytest.approx([27] * 2, abs=3)


@pytest.fixture
def reference(sample, tmp_path):
    """An archive of two equal samples."""
    image, target, _ = sample
    np.savez(tmp_path / "samples.npz", image_9=[image] * 2, target_9=[target] * 2)
    return ["--reference", str(tmp_path / "samples.npz"), "--lengths", "9"]


def test_table_and_sheet(reference, tmp_path, capsys):
    main([*reference, "--num", "1", "--sheet", str(tmp_path / "sheet.png")])
    assert "length 9: 2 reference | 1 generated" in capsys.readouterr().out
    sheet = cv2.imread(str(tmp_path / "sheet.png"), cv2.IMREAD_GRAYSCALE)
    assert sheet.shape == (2 * 302, 2 * 302) and not sheet[302:, 302:].any()


def test_a_reference_of_the_same_seed_is_told_of(reference, capsys):
    """A set made as the page on data sets says would be compared with itself."""
    main([*reference, "--num", "1"])
    assert "warning: --reference has the generated samples of length 9: give another --seed" in capsys.readouterr().err
    main([*reference, "--num", "1", "--seed", "1"])
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--lengths", "9", "14"], "has no image_14, target_14"),
        (["--num", "0"], "not a whole number of at least 1"),
        (["--sheet", "sheet.xyz"], "does not end in .png"),
        (["--reference", __file__], "cannot be read as .npz archive"),
        (["--reference", "nowhere.npz"], "nowhere.npz does not exist"),
    ],
)
def test_wrong_arguments_are_named(reference, capsys, arguments, words):
    with pytest.raises(SystemExit) as end:
        main([*reference, *arguments])
    assert end.value.code == 2 and words in capsys.readouterr().err


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda image, target: (image[:, ::2, ::2], target[:, ::2, ::2]), "image_9 must be uint8 (N, 300, 300)"),
        (lambda image, target: (np.stack([image] * 3, -1), target), "image_9 must be uint8"),
        (lambda image, target: (image / 255, target), "it is float64"),
        (lambda image, target: (image[:0], target[:0]), "N at least 1; it is uint8 (0, 300, 300)"),
        (lambda image, target: (image, target[:1]), "2 in image_9, 1 in target_9"),
        (lambda image, target: (image, target * 0), "image_9[0]: its target has no marker"),
        (lambda image, target: (image * 0, target), "image_9[0]: 0 dashes on the target"),
    ],
)
def test_other_pictures_are_refused(sample, tmp_path, capsys, change, words):
    arrays = change(*(np.stack([picture] * 2) for picture in sample[:2]))
    np.savez(tmp_path / "samples.npz", **dict(zip(("image_9", "target_9"), arrays)))
    with pytest.raises(SystemExit) as end:
        main(["--reference", str(tmp_path / "samples.npz"), "--lengths", "9"])
    assert end.value.code == 2 and words in capsys.readouterr().err


def test_folders_are_read_as_in_training(tmp_path):
    """Greys of 16 bits keep their brightness."""
    write_split(tmp_path, PathfinderSettings(9), "train", 1, progress=False)
    (path,) = (tmp_path / "train" / "curv_contour_length_9" / "imgs").rglob("*.png")
    before = read_reference(str(tmp_path / "train"), [9], 1)
    Image.fromarray(np.array(Image.open(path)).astype(np.uint16) * 257).save(path)
    after = read_reference(str(tmp_path / "train"), [9], 1)
    assert len(np.unique(before["image_9"])) > 100
    for name, pictures in before.items():
        np.testing.assert_array_equal(after[name], pictures)


def test_short_contours_have_no_turns(tmp_path, capsys):
    write_split(tmp_path, PathfinderSettings(3), "train", 2, seed=0, progress=False)
    main(["--reference", str(tmp_path / "train"), "--lengths", "3", "--num", "2"])
    row = next(line for line in capsys.readouterr().out.splitlines() if "turn (degrees)" in line)
    assert row.split()[-7:] == ["-", "-", "-", "|", "-", "-", "-"]


def test_folders_of_a_generator(tmp_path, capsys):
    write_split(tmp_path, PathfinderSettings(9), "train", 3, seed=0, progress=False)
    main(["--reference", str(tmp_path / "train"), "--lengths", "9", "--num", "2"])
    lines = capsys.readouterr().out.splitlines()
    assert "length 9: 2 reference | 2 generated" in lines[1]
    # of the same seed, so the same samples
    row = next(line for line in lines if "turn (degrees)" in line)
    theirs, ours = (side.split()[-3:] for side in row.split("|"))
    assert theirs == ours and float(theirs[0]) > 0
    with pytest.raises(SystemExit) as end:
        main(["--reference", str(tmp_path / "train"), "--lengths", "14"])
    assert end.value.code == 2 and "curv_contour_length_14" in capsys.readouterr().err


def test_a_damaged_reference_is_named(reference, tmp_path, capsys):
    (tmp_path / "samples.npz").write_bytes(b"")
    with pytest.raises(SystemExit) as end:
        main(reference)
    assert end.value.code == 2 and "samples.npz cannot be read as .npz archive" in capsys.readouterr().err
