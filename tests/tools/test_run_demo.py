"""What both demos share: how they end early, and where their data lie."""

import errno
import json
from types import SimpleNamespace

import pytest
import run_demo
import run_pathfinder_demo

import rfpn.modeling  # noqa: F401  (registers the architectures)
from rfpn.engine.launch import argument_parser

ARCHITECTURES = {run_demo: "PanopticFPN", run_pathfinder_demo: "PathfinderNet"}
DEMOS = list(ARCHITECTURES)


def arguments(*words):
    return argument_parser("a demo").parse_args(words)


def settings(folder, demo, sets=("scored",)):
    architecture = SimpleNamespace(META_ARCHITECTURE=ARCHITECTURES[demo])
    return SimpleNamespace(OUTPUT_DIR=folder, MODEL=architecture, DATASETS=SimpleNamespace(TEST=sets))


@pytest.fixture
def trained(monkeypatch, tmp_path):
    """Function that puts in place of the trainer one whose training does as told; no data are made."""

    def prepare(train, demo=run_demo):
        class Trainer:
            def __init__(self, cfg):
                self.cfg = cfg

            def resume_or_load(self, resume):
                pass

            def register_hooks(self, hooks):
                pass

            def train(self):
                return train()

        # the slash that a shell completes a folder's name with
        cfg = settings(f"{tmp_path}/run/", demo)
        monkeypatch.setattr(run_demo, "setup", lambda args: cfg)
        monkeypatch.setattr(run_demo, "Trainer", Trainer)
        monkeypatch.setattr(run_demo, "make_scenes", lambda: None)
        monkeypatch.setattr(run_pathfinder_demo, "make_images", lambda: None)

    return prepare


@pytest.mark.parametrize("demo", DEMOS)
@pytest.mark.parametrize(
    "error, status, words",
    [
        (FloatingPointError("iteration 3: not finite: loss_mask"), 3, "error: iteration 3: not finite: loss_mask"),
        (OSError(errno.ENOSPC, "No space left on device"), 2, "run: No space left on device; "),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_what_stops_training_ends_in_one_line(trained, capsys, demo, error, status, words):
    def fail():
        raise error

    trained(fail, demo)
    with pytest.raises(SystemExit) as end:
        demo.main(arguments())
    (line,) = capsys.readouterr().err.splitlines()
    assert end.value.code == status and words in line


@pytest.mark.parametrize("demo", DEMOS)
@pytest.mark.parametrize("names", [(), ("one", "two")])
def test_one_set_is_scored(trained, monkeypatch, capsys, demo, names):
    trained(lambda: pytest.fail("trained"))
    monkeypatch.setattr(run_demo, "setup", lambda args: settings("run", demo, names))
    with pytest.raises(SystemExit) as end:
        demo.main(arguments())
    (line,) = capsys.readouterr().err.splitlines()
    assert end.value.code == 2 and line == f"error: DATASETS.TEST must name one data set, which is scored, got {names}"


def test_scores_are_written_before_anything_is_drawn(trained, tmp_path, capsys):
    def draw(trainer, folder):
        raise OSError(f"{folder}/1.png: could not be written")

    trained(lambda: {"panoptic_seg": {"PQ": 1.5}})
    with pytest.raises(SystemExit) as end:
        run_demo.run(arguments(), "PanopticFPN", lambda: None, lambda trainer, results: results["panoptic_seg"], draw)
    assert end.value.code == 2 and "1.png: could not be written" in capsys.readouterr().err
    assert json.loads((tmp_path / "metrics.json").read_text()) == {"PQ": 1.5, "seconds": 0.0}


def test_data_are_made_where_they_are_registered(monkeypatch, tmp_path):
    roots = []
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DETECTRON2_DATASETS", "~/sets")
    monkeypatch.setattr(run_demo, "write_scenes", lambda root, *args, **options: roots.append(root))
    monkeypatch.setattr(run_pathfinder_demo, "write_split", lambda root, *args, **options: roots.append(root))
    run_demo.make_scenes()
    run_pathfinder_demo.make_images()
    assert set(roots) == {str(tmp_path / "sets" / "scenes"), str(tmp_path / "sets" / "pathfinder_easy")}


@pytest.mark.parametrize("demo", DEMOS)
def test_wrong_arguments_end_before_data_are_made(trained, monkeypatch, capsys, demo):
    def setup(args):
        raise KeyError("command-line override: Non-existent key: FOO")

    trained(lambda: pytest.fail("trained"))
    for module, name in ((run_demo, "make_scenes"), (run_pathfinder_demo, "make_images")):
        monkeypatch.setattr(module, name, lambda: pytest.fail("made"))
    monkeypatch.setattr(run_demo, "setup", setup)
    with pytest.raises(SystemExit) as end:
        demo.main(arguments())
    (line,) = capsys.readouterr().err.splitlines()
    assert end.value.code == 2 and line == "error: command-line override: Non-existent key: FOO"
    other = next(module for module in DEMOS if module is not demo)
    for cfg, words in (
        (settings("run", demo, ()), "DATASETS.TEST must name one data set"),
        (settings("run", other), f"META_ARCHITECTURE {ARCHITECTURES[other]} is not this demo's, {ARCHITECTURES[demo]}"),
    ):
        monkeypatch.setattr(run_demo, "setup", lambda args, cfg=cfg: cfg)
        with pytest.raises(SystemExit):
            demo.main(arguments())
        assert words in capsys.readouterr().err
    for words in (["--eval-only"], ["--num-gpus", "2"], ["--num-machines", "2"]):
        with pytest.raises(SystemExit):
            demo.main(arguments(*words))
        assert "are for tools/train_net.py" in capsys.readouterr().err


def test_the_demo_of_scenes_scores_what_training_gives():
    results = {"panoptic_seg": dict.fromkeys(("PQ", "PQ_th", "PQ_st", "SQ", "RQ", "PQ_cat"), 12.345)}
    assert run_demo.score(None, results) == dict.fromkeys(("PQ", "PQ_th", "PQ_st", "SQ", "RQ"), 12.35)
