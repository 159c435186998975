import errno

import pytest

from rfpn.data.files import whole_file


def test_file_is_there_at_the_end(tmp_path):
    with whole_file(tmp_path / "a.txt") as temporary:
        temporary.write_text("all of it")
        assert not (tmp_path / "a.txt").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"] and (tmp_path / "a.txt").read_text() == "all of it"


@pytest.mark.parametrize(
    "error, message",
    [
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device: '.*a.txt'"),
        (OSError("encoder error -2"), "^encoder error -2$"),
        (ValueError("no such colour"), "^no such colour$"),
    ],
)
def test_error_leaves_what_was_there(error, message, tmp_path):
    (tmp_path / "a.txt").write_text("old")
    with pytest.raises(type(error), match=message):
        with whole_file(tmp_path / "a.txt") as temporary:
            temporary.write_text("half")
            raise error
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"] and (tmp_path / "a.txt").read_text() == "old"
