import numpy as np
import pytest
from PIL import Image

from rfpn.data.panoptic_png import decode_ids, encode_ids, index_segments, read_panoptic_png, write_panoptic_png

EDGE_IDS = np.array([[0, 255, 256], [65535, 65536, 2**24 - 1]])


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.uint32, np.int64])
def test_B8_ids_round_trip_in_every_integer_type(dtype):
    rgb = encode_ids(EDGE_IDS)
    assert rgb.dtype == np.uint8
    np.testing.assert_array_equal(decode_ids(rgb.astype(dtype)), EDGE_IDS)


def test_B8_uint8_does_not_overflow():
    assert decode_ids(np.full((1, 1, 3), 13, dtype=np.uint8))[0, 0] == 855309


@pytest.mark.parametrize("bad", [-1, 2**24])
def test_B8_ids_beyond_three_bytes_are_rejected(bad):
    with pytest.raises(ValueError, match=str(bad)):
        encode_ids(np.array([[1, bad]]))


@pytest.mark.parametrize("dtype", [float, bool, np.float32])
def test_B8_only_integers_are_ids(dtype):
    with pytest.raises(ValueError, match="integers"):
        encode_ids(EDGE_IDS.astype(dtype))
    with pytest.raises(ValueError, match="integers"):
        decode_ids(np.zeros((2, 2, 3), dtype=dtype))


def test_B8_agrees_with_panopticapi():
    utils = pytest.importorskip("panopticapi.utils")
    np.testing.assert_array_equal(encode_ids(EDGE_IDS), utils.id2rgb(EDGE_IDS))
    np.testing.assert_array_equal(decode_ids(encode_ids(EDGE_IDS)), utils.rgb2id(encode_ids(EDGE_IDS)))


@pytest.mark.parametrize("mode", ["L", "P", "LA", "I;16"])
def test_B8_file_of_one_channel_is_named(tmp_path, mode):
    Image.new(mode, (4, 4)).save(tmp_path / "truth.png")
    with pytest.raises(ValueError, match="truth.png"):
        read_panoptic_png(str(tmp_path / "truth.png"))


def test_file_round_trip(tmp_path):
    write_panoptic_png(str(tmp_path / "a.png"), EDGE_IDS)
    np.testing.assert_array_equal(read_panoptic_png(str(tmp_path / "a.png")), EDGE_IDS)


def test_index_segments_counts_pixels():
    ids = np.array([[0, 9, 9], [4, 4, 4]])
    index, areas = index_segments(ids, [{"id": 9}, {"id": 4}])
    np.testing.assert_array_equal(index, [[0, 1, 1], [2, 2, 2]])
    np.testing.assert_array_equal(areas, [2, 3])


@pytest.mark.parametrize(
    "listed, message",
    [([9, 4, 5], "no pixel: 5"), ([9], "not listed: 4"), ([9, 4, 4], "twice"), ([0, 9, 4], "start at 1")],
)
def test_B3_listed_ids_and_pixels_must_agree(listed, message):
    with pytest.raises(ValueError, match=message):
        index_segments(np.array([[0, 9, 9], [4, 4, 4]]), [{"id": i} for i in listed])


def test_index_segments_without_segments():
    index, areas = index_segments(np.zeros((2, 3), dtype=np.int32), [])
    assert not index.any() and areas.shape == (0,)
