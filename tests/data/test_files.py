import errno
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from rfpn.data.files import datasets_root, differences, finite, first_few, read_json, whole_file, write_json


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


def test_json_is_written_whole_into_a_folder_that_it_makes(tmp_path):
    path = tmp_path / "new" / "a.json"
    write_json(path, {"a": [1]})
    assert path.read_text() == '{"a": [1]}\n'
    write_json(path, {"a": [1]}, indent=1)
    whole = path.read_text()
    assert len(whole.splitlines()) == 5 and json.loads(whole) == {"a": [1]}
    with pytest.raises(TypeError):
        write_json(path, {"a": 1, "b": {1}})
    assert [file.name for file in path.parent.iterdir()] == ["a.json"] and path.read_text() == whole


@pytest.mark.parametrize("kind", [float, np.float32, np.float64])
def test_numbers_that_json_has_no_word_for_are_none(tmp_path, kind):
    write_json(tmp_path / "numbers.json", finite({"values": [kind("nan"), kind("-inf"), kind(0.5)]}))
    assert read_json(tmp_path / "numbers.json") == {"values": [None, None, 0.5]}


def test_tables_are_utf8_whatever_the_locale(tmp_path):
    code = f"from rfpn.data.files import write_csv; write_csv({str(tmp_path / 'a.csv')!r}, [{{'class': chr(0x111)}}])"
    ascii_locale = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    subprocess.run([sys.executable, "-c", code], env={**os.environ, **ascii_locale}, check=True)
    assert (tmp_path / "a.csv").read_text(encoding="utf-8") == "class\n\u0111\n"


def test_differences_are_told_entry_by_entry():
    old, new = {"num": 20, "settings": {"a": 1, "b": 2}, "a": 1}, {"num": 40, "settings": {"a": 1, "b": 3}, "a": 1}
    assert differences(old, new) == "num 20, not 40; b 2, not 3" and differences(old, old) == ""
    assert differences({"a": None}, {"settings": {}}) == "a None, not nothing; settings nothing, not {}"


def test_a_byte_order_mark_is_named(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("{}", encoding="utf-8-sig")
    with pytest.raises(ValueError, match=r"a.json: not a JSON file \(save it as UTF-8 without a byte order mark\)$"):
        read_json(str(path))


@pytest.mark.parametrize(
    "values, most, words",
    [
        ([], 5, ""),
        ([1, 2], 5, "1, 2"),
        (range(5), 5, "0, 1, 2, 3, 4"),
        ([*"abcd"], 3, "a, b, c and 1 more"),
        (np.arange(9), 1, "0 and 8 more"),
    ],
)
def test_the_first_few_of_many(values, most, words):
    assert first_few(values, most) == words


@pytest.mark.parametrize("value, root", [(None, "datasets"), ("/sets", "/sets"), ("~/sets", "/home/me/sets")])
def test_root_of_all_data_sets(monkeypatch, value, root):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("DETECTRON2_DATASETS", raising=False)
    if value:
        monkeypatch.setenv("DETECTRON2_DATASETS", value)
    assert datasets_root() == root
