"""Configurations are checked as they are read; errors end a program in one line."""

import pytest
from torch.utils.data import DataLoader

from rfpn.engine.setup import load_cfg, one_line_errors


class Failing(list):
    def __getitem__(self, index):
        raise ValueError("photo.png: is\ncut short")


def read_by_a_worker():
    list(DataLoader(Failing([0]), num_workers=1))


def fail(error):
    raise error


@pytest.mark.parametrize(
    "run, code, line",
    [
        (lambda: fail(ValueError("SOME.KEY\n  is wrong")), 2, "error: SOME.KEY is wrong"),
        (lambda: fail(KeyError("SOME.KEY is unknown")), 2, "error: SOME.KEY is unknown"),
        (lambda: fail(FileNotFoundError(2, "No such file", "a.png")), 2, "error: [Errno 2] No such file: 'a.png'"),
        (lambda: fail(FloatingPointError("iteration 3: not finite: loss_mask")), 3, "error: iteration 3: not finite: loss_mask"),
        (read_by_a_worker, 2, "error: photo.png: is cut short"),
    ],
)
def test_wrong_input_ends_in_one_line(run, code, line, capsys):
    with pytest.raises(SystemExit) as end, one_line_errors():
        run()
    assert end.value.code == code
    assert capsys.readouterr().err == line + "\n"


def test_faults_of_the_program_keep_their_traceback():
    with pytest.raises(AttributeError), one_line_errors():
        fail(AttributeError("a bug"))


@pytest.mark.parametrize(
    "content, words",
    [
        ("MODEL: {RECURRENT: {STEPS: .nan}}", "MODEL.RECURRENT.STEPS"),
        ("MODEL: {RECURRENT: {STEPS: null}}", "MODEL.RECURRENT.STEPS must not be None"),
        ("MODEL: {RECURRENT: {STEPS: [3]}}", "MODEL.RECURRENT.STEPS"),
        ("MODEL: {RECURRENT: 3}", "MODEL.RECURRENT|no configuration"),
        ("MODEL: {RECURRENT: {STEPS: 3", "no configuration"),
        ("- a list", "no configuration"),
        ("just words", "no configuration"),
        ("\0", "no configuration"),
        ("_BASE_: [1]", "no configuration"),
    ],
)
def test_a_broken_file_is_named(tmp_path, content, words):
    path = tmp_path / "broken.yaml"
    path.write_text(content)
    with pytest.raises(ValueError, match=words):
        load_cfg(str(path), [])


def test_an_odd_number_of_overrides_is_an_error():
    with pytest.raises(KeyError, match="override"):
        load_cfg("", ["MODEL.WEIGHTS"])
