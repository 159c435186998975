"""Links, commands, configuration keys and names in the documentation lead somewhere."""

import argparse
import ast
import importlib
import re
import runpy
import shlex
from pathlib import Path
from unittest import mock

import pytest
import yaml

import rfpn

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "datasets/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
PROGRAMS = sorted([*(ROOT / "tools").glob("*.py"), *(ROOT / "datasets").glob("*.py")])
CONFIGS = sorted((ROOT / "configs").rglob("*.yaml"))
PROGRAM = re.compile(r"(tools|datasets|examples)/\S+\.py")
KEY = re.compile(r"\b(?:MODEL|SOLVER|INPUT|DATASETS|DATALOADER|TEST)(?:\.[A-Z0-9_]+)+\b")
# programs that may be named in front of a path
LAUNCHERS = re.compile(r"(\S*/)?(python3?|torchrun|srun)$")

by_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def without_code(text: str) -> str:
    """A page's text with code blocks and code spans blanked."""
    text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "code", text)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found: dict[str, int] = {}
    for heading in re.findall(r"^#+ +(.+?) *#*$", re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL), re.M):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        found[slug] = found.get(slug, -1) + 1
    return {slug if not n else f"{slug}-{n}" for slug, last in found.items() for n in range(last + 1)}


def spans(text: str) -> list[str]:
    """Inline code."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def commands(text: str) -> list[list[str]]:
    """Words of every command line in code blocks, fenced or indented by four, and in code spans; comments left out."""
    blocks = re.findall(r"^ *```(?:sh|bash)?\n(.*?)^ *```", text, flags=re.DOTALL | re.MULTILINE)
    indented = re.findall(r"(?:^ {4}.*\S.*\n)+", text + "\n", flags=re.MULTILINE)
    lines = [line.strip() for block in blocks + indented for line in block.replace("\\\n", " ").splitlines()]
    lines += [span.strip() for span in spans(text)]
    starts = re.compile(r"([A-Z_]+=\S* +)*((\S*/)?python3?|torchrun|srun|make) ")
    # what runs in the background takes the same words
    return [shlex.split(line.removesuffix(" &"), comments=True) for line in lines if starts.match(line + " ")]


def program_calls(text: str) -> list[list[str]]:
    """Commands that call a program of this project, from the program's path on."""
    calls = []
    for words in commands(text):
        places = [i for i, word in enumerate(words) if PROGRAM.fullmatch(word)]
        if places and any(LAUNCHERS.match(word) for word in words[: places[0]]):
            calls.append(words[places[0] :])
    return calls


def value_of(cfg, key: str):
    """What a configuration has under a key with dots; None where there is no such key."""
    for part in key.split("."):
        cfg = cfg.get(part) if isinstance(cfg, dict) else None
    return cfg


class Parsed(Exception):
    """Ends a program once it has read its arguments, which it carries."""

    def __init__(self, arguments):
        self.arguments = arguments


def parse(call: list[str], monkeypatch):
    """The arguments as the program itself reads them; it runs no further."""
    read = argparse.ArgumentParser.parse_args

    def stop(parser, args=None, namespace=None):
        raise Parsed(read(parser, args, namespace))

    monkeypatch.setattr("sys.argv", call)
    with mock.patch.object(argparse.ArgumentParser, "parse_args", stop):
        try:
            runpy.run_path(str(ROOT / call[0]), run_name="__main__")
        except Parsed as parsed:
            return parsed.arguments
        except SystemExit as end:
            raise AssertionError(f"refused its arguments: {shlex.join(call)}") from end
    raise AssertionError(f"{call[0]} reads no arguments")


def check_call(call: list[str], monkeypatch) -> None:
    """The program exists, takes the options; its configuration exists and takes the overrides, names and types."""
    from rfpn.config import get_cfg

    assert (ROOT / call[0]).is_file(), f"no program {call[0]}"
    arguments = parse(call, monkeypatch)
    config, cfg = getattr(arguments, "config_file", ""), get_cfg()
    for path in config if isinstance(config, (list, tuple)) else [config]:
        if path.endswith("/"):
            assert (ROOT / path).is_dir(), f"no folder {path}"
        elif path and path != "..." and not path.startswith("output/"):  # "...": what the reader fills in
            assert (ROOT / path).is_file(), f"no configuration {path}"
            cfg.merge_from_file(str(ROOT / path))
    cfg.merge_from_list([word for word in getattr(arguments, "opts", None) or [] if word != "..."])


@by_page
def test_links_resolve(page):
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text("utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or not file.is_relative_to(ROOT) or anchor and anchor not in anchors(file):
            wrong.append(target)
    assert not wrong


@by_page
def test_commands_are_taken_by_their_programs(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    for call in program_calls(page.read_text("utf-8")):
        check_call(call, monkeypatch)


def test_pages_have_commands():
    """Else the tests beside this one would see none, and pass."""
    calls = {page: program_calls(page.read_text("utf-8")) for page in PAGES}
    assert len(calls[ROOT / "README.md"]) > 5 and sum(map(len, calls.values())) > 60


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: str(program.relative_to(ROOT)))
def test_commands_in_programs_own_help(program, monkeypatch):
    monkeypatch.chdir(ROOT)
    for call in program_calls(ast.get_docstring(ast.parse(program.read_text("utf-8")), clean=False) or ""):
        check_call(call, monkeypatch)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: str(path.relative_to(ROOT)))
def test_overrides_in_comments_of_configurations(path):
    from rfpn.config import get_cfg

    for line in path.read_text("utf-8").splitlines():
        comment = line.partition("#")[2]
        for key in KEY.findall(comment):
            value = re.search(rf"{re.escape(key)} ([\w.]*\w)", comment)
            if value:
                get_cfg().merge_from_list([key, value[1]])
            assert value_of(get_cfg(), key) is not None, f"no key {key}"


@by_page
def test_rows_of_configuration_and_overrides(page):
    """Spans such as `NAME.yaml KEY VALUE`, which complete a command that the page gives before them."""
    from rfpn.config import get_cfg

    for span in spans(page.read_text("utf-8")):
        name, *overrides = shlex.split(span) if re.match(r"[\w/-]+\.yaml\b", span) else [""]
        if name and name != "config.yaml":
            files = [ROOT / name] if "/" in name else list((ROOT / "configs").rglob(name))
            assert files and files[0].is_file(), f"no configuration {name}"
            cfg = get_cfg()
            cfg.merge_from_file(str(files[0]))
            cfg.merge_from_list(overrides)


@by_page
def test_configuration_keys_exist(page):
    from rfpn.config import get_cfg

    cfg = get_cfg()
    assert not [key for key in KEY.findall(page.read_text("utf-8")) if value_of(cfg, key) is None]


@by_page
def test_make_targets_exist(page):
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = {word for words in commands(page.read_text("utf-8")) if words[0] == "make" for word in words[1:]}
    assert {word for word in named if "=" not in word and not word.startswith("-")} <= targets


@by_page
def test_files_and_python_names_exist(page):
    wrong = []
    for span in spans(page.read_text("utf-8")):
        if re.fullmatch(r"(rfpn|tools|tests|configs|datasets|examples|docs)/[\w./-]+\.(py|md|yaml)", span):
            wrong += [] if (ROOT / span).is_file() else [span]
        elif test := re.fullmatch(r"(?:tests/)?([\w/]+\.py)::(\w+)", span):
            file = ROOT / "tests" / test[1]
            wrong += [] if file.is_file() and f"def {test[2]}(" in file.read_text("utf-8") else [span]
        elif re.fullmatch(r"rfpn(\.\w+)+", span):
            wrong += [] if resolves(span) else [span]
    assert not wrong


@by_page
def test_python_examples_import_what_exists(page):
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom):
                assert all(resolves(f"{node.module}.{alias.name}") for alias in node.names), ast.unparse(node)


def resolves(name: str) -> bool:
    """Whether a dotted name leads to a module or something in one."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def test_every_page_is_in_the_index():
    index = (ROOT / "docs" / "README.md").read_text("utf-8")
    missing = [str(p.relative_to(ROOT / "docs")) for p in PAGES if p.is_relative_to(ROOT / "docs") and p.name != "README.md"]
    assert [page for page in missing if f"({page})" not in index] == [], "name them in docs/README.md"


def test_citation_names_version_and_paper():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == rfpn.__version__ and citation["license"] == "Apache-2.0"
    assert citation["preferred-citation"]["title"] == "Stable and expressive recurrent vision models"


@pytest.mark.parametrize(
    "line, error",
    [
        ("python tools/nothing.py", "no program"),
        ("python tools/train_net.py --no-such-option 1 --config-file configs/Nuclei/rfpn.yaml --num-gpus", "refused"),
        ("python tools/train_net.py --config-file configs/nothing.yaml", "no configuration"),
        ("python tools/train_net.py --config-file configs/Nuclei/rfpn.yaml MODEL.RECURENT.STEPS 3", "Non-existent key"),
    ],
)
def test_mistakes_are_found(line, error, monkeypatch):
    monkeypatch.chdir(ROOT)
    (call,) = program_calls(f"```\n{line}\n```\n")
    with pytest.raises((AssertionError, KeyError), match=error):
        check_call(call, monkeypatch)


def test_every_measured_file_is_named_by_a_page():
    """Runs with several seeds are named from the first to the last."""
    text = "".join(page.read_text("utf-8") for page in PAGES)
    files = [path.name for path in (ROOT / "docs" / "results").glob("*/*")]
    assert len(files) > 50
    unnamed = [name for name in files if name not in text and re.sub(r"seed\d", "seed1", name) not in text]
    assert not unnamed
