"""The program that makes a page about a run, also as a browser shows it."""

import os
import re
import shutil
import time

import pytest
import report

from rfpn.analysis.report.run import read_run
from tests.analysis.tiny_runs import CONTOURS, EVERYTHING, SCENES, write_run

METRICS = [
    {"iteration": 0, "total_loss": 3.0, "loss_mask": 1.0, "recurrent/residual": 0.5, "lr": 0.1},
    {"iteration": 1, "total_loss": 2.0, "loss_mask": 0.5, "recurrent/residual": 0.25, "lr": 0.05},
    {"iteration": 2, "panoptic_seg/PQ": 12.0, "bbox/AP": 3.0, "bbox/AP-cat": 4.0, "convergence/residual": 0.75},
]
CONTOUR_METRICS = [METRICS[0], {"iteration": 1, "pathfinder/IoU": 0.25, "pathfinder/precision": 0.5}]


@pytest.fixture(scope="module")
def pages(scenes, contours, tmp_path_factory):
    """Pages about a panoptic and a Pathfinder run."""
    root = tmp_path_factory.mktemp("report")
    write_run(root / "rfpn", SCENES, *EVERYTHING, "DATASETS.TEST", "('tiny_scenes',)", metrics=METRICS)
    write_run(root / "pathfinder", CONTOURS, "DATASETS.TEST", "('tiny_contours',)", metrics=CONTOUR_METRICS)
    for name in ("rfpn", "pathfinder"):
        run(root / name, "--samples", "2")
    return root


def run(folder, *words):
    report.main(report.parse_args(["--run", str(folder), *words]))


def headings(html):
    return re.findall(r"<h2>([^<]*)</h2>", html)


@pytest.mark.parametrize(
    "name, texts",
    [
        ("rfpn", ["R-FPN, C-RBP 2", "panoptic_seg", "<h3>convergence</h3>", "00000002.png"]),
        ("pathfinder", ["hGRU", "sample_1.png"]),
    ],
)
def test_a_page_has_everything_and_asks_for_nothing(pages, name, texts):
    html = (pages / name / "report.html").read_text()
    assert headings(html) == ["Scores", "Training", "Samples", "Steps of processing", "Configuration"]
    assert all(text in html for text in [*texts, "MODEL.RECURRENT.STEPS", "total_loss"])
    assert html.count("<figcaption>ground truth") == html.count("<figcaption>prediction") == 2
    assert html.count("Plotly.addFrames(") == 2
    assert not re.findall(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=[\"'](?!data:)", html)


def test_evaluations_add_no_iterations(pages):
    assert report.tiles(report.read_run(str(pages / "rfpn")))["iterations"] == "2"


def test_a_folder_with_curves_alone(pages, tmp_path):
    (tmp_path / "run").mkdir()
    shutil.copy(pages / "rfpn" / "metrics.json", tmp_path / "run")
    run(tmp_path / "run", "--output", str(tmp_path / "new" / "page.html"))
    html = (tmp_path / "new" / "page.html").read_text()
    assert headings(html) == ["Scores", "Training", "Samples"]
    assert "Left out: " in html and "config.yaml does not exist" in html


@pytest.mark.parametrize(
    "words, reason",
    [(["DATASETS.TEST", "('nowhere',)"], "nowhere"), (["--weights", "none.pth"], "none.pth does not exist")],
)
def test_what_is_missing_for_samples_is_said(pages, tmp_path, words, reason):
    run(pages / "rfpn", "--output", str(tmp_path / "page.html"), *words)
    html = (tmp_path / "page.html").read_text()
    assert headings(html) == ["Scores", "Training", "Samples", "Configuration"]
    assert re.search(rf"<p>Left out: [^<]*{reason}", html)


def test_a_folder_without_a_run_gives_one_line(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        run(tmp_path)
    assert end.value.code == 2 and "no run, has neither" in capsys.readouterr().err


def test_steps_of_a_feedforward_model_give_one_line(scenes, tmp_path, capsys):
    feedforward = ["MODEL.ROI_MASK_HEAD.NAME", "MaskRCNNConvUpsampleHead", "MODEL.ROI_MASK_HEAD.NORM", ""]
    write_run(tmp_path / "run", SCENES, *EVERYTHING, *feedforward, "DATASETS.TEST", "('tiny_scenes',)", metrics=METRICS)
    with pytest.raises(SystemExit) as end:
        run(tmp_path / "run", "--steps", "1,2", "--samples", "1")
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert end.value.code == 2 and "--steps needs a recurrent model" in line
    assert not (tmp_path / "run" / "report.html").exists()


def test_a_page_that_cannot_be_written_is_told_of_before_any_sample(pages, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(report, "sample_run", lambda *_: pytest.fail("a model is loaded"))
    (tmp_path / "file").touch()
    for output in (tmp_path, tmp_path / "file" / "page.html"):
        with pytest.raises(SystemExit) as end:
            run(pages / "rfpn", "--output", str(output))
        assert end.value.code == 2 and str(tmp_path) in capsys.readouterr().err


def test_a_page_is_written_whole_or_not_at_all(pages, tmp_path, monkeypatch):
    (tmp_path / "page.html").write_text("former")
    # half a character cannot be written
    monkeypatch.setattr(report.page, "build_page", lambda *_: "page \ud800")
    with pytest.raises(SystemExit):
        run(pages / "rfpn", "--output", str(tmp_path / "page.html"), "--samples", "0")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"page.html": "former"}


def test_a_run_that_goes_on_is_shown_by_its_last_checkpoint(tmp_path):
    """Also where it goes on beyond a former end, whose checkpoint is still there."""
    assert report.last_weights("run") == os.path.join("run", "model_final.pth")
    (tmp_path / "model_final.pth").touch()
    assert report.last_weights(str(tmp_path)) == str(tmp_path / "model_final.pth")
    (tmp_path / "last_checkpoint").write_text("model_0000299.pth")
    assert report.last_weights(str(tmp_path)) == str(tmp_path / "model_0000299.pth")


@pytest.mark.parametrize(
    "trained, expected",
    [
        (range(1, 2), [1, 2]),
        (range(6, 7), list(range(1, 13))),
        (range(20, 21), [1, *range(2, 41, 2)]),
        (range(15, 16), [1, *range(2, 31, 2), 15]),
        (range(5, 9), list(range(1, 17))),
        (range(21, 41), [1, *range(4, 81, 4), 21]),
    ],
)
def test_default_steps(trained, expected):
    assert report.default_steps(trained) == sorted(set(expected))


@pytest.fixture(scope="module")
def browser():
    """Headless Chromium of the machine."""
    selenium = pytest.importorskip("selenium.webdriver")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and driver):
        pytest.skip("needs chromium and chromedriver")
    options = selenium.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1200,900"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = selenium.Chrome(options=options, service=selenium.ChromeService(driver))
    yield browser
    browser.quit()


def wait_for(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.1)
    assert condition()


def settled(element):
    """Whether an element keeps its place; charts get their size after the page has loaded."""
    before = element.rect
    time.sleep(0.3)
    return element.rect == before


@pytest.mark.parametrize("name, last", [("rfpn", 4), ("pathfinder", 12)])
def test_the_slider_changes_the_picture_in_a_browser(pages, browser, name, last):
    from selenium.webdriver.common.action_chains import ActionChains

    browser.get(f"file://{pages / name / 'report.html'}")
    shown = """return [...document.querySelectorAll('.slider-container')].map(slider =>
        slider.closest('.js-plotly-plot').querySelector('.imagelayer image').getAttribute('href'))"""
    wait_for(lambda: len(browser.execute_script(shown)) == 2 and all(browser.execute_script(shown)))
    before = browser.execute_script(shown)
    label = "return document.querySelector('.slider-container .slider-label').textContent"
    assert browser.execute_script(label) == "step 1"
    rail = browser.find_element("css selector", ".slider-container .slider-rail-touch-rect")
    wait_for(lambda: settled(rail))
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", rail)
    wait_for(lambda: settled(rail))
    right_end = int(rail.rect["width"] / 2) - 3
    ActionChains(browser).move_to_element_with_offset(rail, right_end, 0).click().perform()
    wait_for(lambda: browser.execute_script(shown)[0] != before[0])
    assert browser.execute_script(shown)[1] == before[1]
    assert browser.execute_script(label) == f"step {last}"
    assert [entry for entry in browser.get_log("browser") if entry["level"] != "INFO"] == []


def test_the_configuration_can_be_searched_in_a_browser(pages, browser):
    browser.get(f"file://{pages / 'rfpn' / 'report.html'}")
    browser.find_element("id", "search").send_keys("neumann_terms")
    rows = browser.execute_script(
        "return [...document.querySelectorAll('#configuration tr')]"
        ".filter(row => row.checkVisibility()).map(row => row.textContent)"
    )
    assert rows and all(row.startswith("MODEL.RECURRENT.NEUMANN_TERMS") for row in rows)


@pytest.mark.parametrize("width", [390, 1200])
def test_the_page_fits_a_phone_and_a_desk(pages, browser, width):
    screen = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    browser.get(f"file://{pages / 'rfpn' / 'report.html'}")
    charts = """return [...document.querySelectorAll('.charts > div')].map(
        place => [place.clientWidth, place.querySelector('.main-svg').clientWidth])"""
    wait_for(lambda: all(drawn <= place for place, drawn in browser.execute_script(charts)))
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width


def test_tiles_of_sets_whose_names_have_a_slash(tmp_path):
    (tmp_path / "metrics.json").write_text('{"iteration": 20, "a/x/panoptic_seg/PQ": 10.0, "a/y/panoptic_seg/PQ": 20.0}\n')
    found = report.tiles(read_run(str(tmp_path)))
    assert {name: float(number) for name, number in found.items()} == {"PQ, a/x": 10.0, "PQ, a/y": 20.0}
