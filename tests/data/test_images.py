import io
import resource

import numpy as np
import pytest
from PIL import Image, ImageFile, TiffImagePlugin

from rfpn.data.images import load_image, read_image, read_label_map, upright_size, write_image

GREY = np.arange(0, 240, 10, dtype=np.uint8).reshape(4, 6)


def save(tmp_path, image, name="picture.png"):
    path = tmp_path / name
    image.save(path)
    return str(path)


def test_G2_grey_equals_the_same_picture_in_rgb(tmp_path):
    grey = Image.fromarray(GREY)
    a = read_image(save(tmp_path, grey, "a.png"))
    b = read_image(save(tmp_path, grey.convert("RGB"), "b.png"))
    np.testing.assert_array_equal(a, b)
    assert a.shape == (4, 6, 3) and a.dtype == np.uint8


def test_G2_sixteen_bits_are_rescaled(tmp_path):
    path = save(tmp_path, Image.fromarray(GREY.astype(np.uint16) * 257))
    np.testing.assert_array_equal(read_image(path)[..., 0], GREY)


@pytest.mark.parametrize("mode", ["LA", "RGBA", "P"])
def test_G2_transparent_pixels_do_not_show_their_colour(tmp_path, mode):
    image = Image.new("RGBA", (4, 4), (0, 0, 0, 0))
    image.paste((10, 10, 10, 255), (0, 0, 2, 4))
    pixels = read_image(save(tmp_path, image.convert(mode) if mode != "P" else image.quantize()))
    np.testing.assert_allclose(pixels[:, :2], 10, atol=1)
    np.testing.assert_array_equal(pixels[:, 2:], 255)


def test_G2_palette_and_cmyk_become_rgb(tmp_path):
    red = Image.new("RGB", (4, 4), (200, 30, 30))
    np.testing.assert_array_equal(read_image(save(tmp_path, red.quantize()), "RGB")[0, 0], [200, 30, 30])
    assert read_image(save(tmp_path, red.convert("CMYK"), "c.jpg"), "RGB").shape == (4, 4, 3)


@pytest.mark.parametrize("mode", ["I", "F"])
def test_G2_unknown_range_is_refused(tmp_path, mode):
    with pytest.raises(ValueError, match="picture.tiff.*8 or 16 bits"):
        read_image(save(tmp_path, Image.new(mode, (4, 4)), "picture.tiff"))


def test_exif_orientation_is_applied(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (6, 4)).save(tmp_path / "turned.jpg", exif=exif)
    assert read_image(str(tmp_path / "turned.jpg")).shape == (6, 4, 3)


@pytest.mark.parametrize("extension", ["jpg", "png", "webp", "tif"])
def test_the_upright_size_is_that_of_the_picture_read(tmp_path, extension):
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        path = str(tmp_path / f"{orientation}.{extension}")
        Image.new("RGB", (6, 4)).save(path, exif=exif)
        assert upright_size(path) == ((6, 4) if orientation < 5 else (4, 6))
        assert upright_size(path)[::-1] == read_image(path).shape[:2]


@pytest.mark.parametrize("turned", [False, True])
def test_the_upright_size_of_tiff_pictures_holds_for_any_pillow(tmp_path, monkeypatch, turned):
    """Some versions give the stored size on opening, some the turned one."""
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (6, 4)).save(tmp_path / "turned.tif", exif=exif)
    monkeypatch.setattr(TiffImagePlugin.TiffImageFile, "size", property(lambda _: (4, 6) if turned else (6, 4)))
    assert upright_size(str(tmp_path / "turned.tif")) == (4, 6)


@pytest.mark.parametrize("format", ["PNG", "JPEG"])
def test_G3_truncated_file_is_named_and_never_used(tmp_path, format):
    whole = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(whole, format=format)
    (tmp_path / "half.img").write_bytes(whole.getvalue()[: whole.tell() // 2])
    with pytest.raises(ValueError, match="half.img"):
        read_image(str(tmp_path / "half.img"))


def test_G3_lenient_pillow_is_refused(tmp_path, monkeypatch):
    path = save(tmp_path, Image.fromarray(GREY))
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    with pytest.raises(ValueError, match="picture.png.*LOAD_TRUNCATED_IMAGES"):
        load_image(path)


@pytest.mark.parametrize("limit", [5, 23])  # Pillow itself only warns up to the double of its limit
def test_G3_picture_above_the_pixel_limit_is_named(tmp_path, monkeypatch, limit):
    path = save(tmp_path, Image.fromarray(GREY))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    with pytest.raises(ValueError, match="picture.png.*limit"):
        read_image(path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert read_image(path).shape == (4, 6, 3)


@pytest.mark.parametrize("format", ["PNG", "JPEG", "TIFF", "BMP", "GIF", "WEBP", "PPM"])
def test_G3_any_damage_gives_a_picture_or_the_name(tmp_path, format):
    rng, whole = np.random.default_rng(0), io.BytesIO()
    Image.fromarray(rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(whole, format=format)
    path, refused = tmp_path / "damaged.img", 0
    for _ in range(60):
        data = bytearray(whole.getvalue())
        for place in rng.integers(min(len(data), rng.choice([40, len(data)])), size=3):
            data[place] = rng.integers(256)
        path.write_bytes(data)
        try:
            pixels = read_image(str(path))
        except ValueError as error:
            assert str(path) in str(error)
            refused += 1
        else:
            assert pixels.dtype == np.uint8 and pixels.ndim == 3 and pixels.shape[2] == 3
    assert refused > 0


def test_G3_damaged_exif_data_are_named(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    path = tmp_path / "turned.webp"
    Image.new("RGB", (6, 4)).save(path, exif=exif)
    data = path.read_bytes()
    assert b"MM\x00*" in data
    path.write_bytes(data.replace(b"MM\x00*", b"MM\x00s"))
    with pytest.raises(ValueError, match="turned.webp: unreadable"):
        read_image(str(path))


def test_missing_and_foreign_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="none.png"):
        read_image(str(tmp_path / "none.png"))
    (tmp_path / "text.png").write_text("no picture")
    with pytest.raises(ValueError, match="text.png"):
        read_image(str(tmp_path / "text.png"))


def test_label_map_of_a_palette_keeps_its_indices(tmp_path):
    labels = Image.fromarray(np.array([[0, 1, 255]], dtype=np.uint8)).convert("P")
    labels.putdata([0, 1, 255])
    labels.putpalette([7, 7, 7] * 256)
    np.testing.assert_array_equal(read_label_map(save(tmp_path, labels)), [[0, 1, 255]])
    with pytest.raises(ValueError, match="colour.png"):
        read_label_map(save(tmp_path, Image.new("RGB", (2, 2)), "colour.png"))


def test_a_picture_is_written_as_it_is(tmp_path):
    colours = np.random.default_rng(0).integers(0, 255, (4, 6, 3), dtype=np.uint8)
    for picture in (GREY, colours):
        write_image(str(tmp_path / "a.png"), picture)
        np.testing.assert_array_equal(np.array(Image.open(tmp_path / "a.png")), picture)


@pytest.mark.parametrize("name", ["none/a.png", "a.png", "a.jpg"])
def test_a_picture_that_cannot_be_written_is_named_and_not_there(tmp_path, name):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        # stands for a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (16, hard))
        with pytest.raises(OSError, match=f"{name}: could not be written"):
            write_image(str(tmp_path / name), GREY)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())


def test_a_picture_that_its_format_cannot_hold_is_named_and_not_there(tmp_path):
    # JPEG counts pixels to 65500
    with pytest.raises(OSError, match=r"a.jpg: could not be written \(its format does not take a picture of \(1, 70000\)\)"):
        write_image(str(tmp_path / "a.jpg"), np.zeros((1, 70000), np.uint8))
    assert not list(tmp_path.iterdir())
