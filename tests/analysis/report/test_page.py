"""The page's HTML."""

import base64
import io
import re

import numpy as np
from PIL import Image

from rfpn.analysis.report import page
from rfpn.analysis.report.run import Run
from rfpn.analysis.samples import Sample


def run(scores=None, settings=None, changed=()):
    return Run("folder", settings or {}, list(changed), {}, scores or {}, {})


def test_the_page_needs_no_network_and_escapes_its_text():
    sections = {"One": "<p>first</p>", "Two words": "<p>2</p>", "None": ""}
    html = page.build_page("a <b> & c", "sub", {"x<y": "1"}, sections)
    assert "a &lt;b&gt; &amp; c" in html and "x&lt;y" in html and "<p>first</p>" in html
    assert '<a href="#two-words">' in html and 'id="two-words"' in html and 'id="none"' not in html
    assert re.search(r"plotly\.js v\d", html)
    assert not re.findall(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=[\"'](?!data:)", html)


def test_tables_show_the_last_and_the_best_evaluation():
    scores = {"panoptic_seg": {"PQ": ([10, 20, 30], [1.0, 55.5, 44.4]), "PQ_th": ([10, 20], [2.0, float("nan")])}}
    html = page.scores_html(run(scores))
    cells = re.findall(r"<t[dh][^>]*>([^<]*)</t[dh]>", html)
    assert cells == ["", "last, iteration 30", "best PQ, iteration 20", "PQ", "44.4", "55.5", "PQ_th", "–", "–"]


def test_the_highest_residual_is_not_the_best():
    scores = {"residual": ([10, 20], [0.5, 0.25]), "unconverged_share": ([10, 20], [1.0, 0.0])}
    html = page.scores_html(run({"convergence": scores}))
    cells = re.findall(r"<t[dh][^>]*>([^<]*)</t[dh]>", html)
    assert cells == ["", "last, iteration 20", "residual", "0.25", "unconverged_share", "0"]


def test_scores_of_single_classes_are_folded():
    scores = {"bbox": {"AP": ([1], [5.0]), "AP-cat": ([1], [7.0])}, "segm": {"AP-cat": ([1], [8.0])}}
    html = page.scores_html(run(scores))
    table = html.partition("<details>")[2]
    assert re.findall(r"<t[dh][^>]*>([^<]*)</t[dh]>", table) == ["class", "bbox AP", "segm AP", "cat", "7", "8"]
    assert "best" not in html


def test_the_configuration_is_folded_by_section_and_changes_are_marked():
    settings = {"SEED": 1, "MODEL.DEVICE": "cpu", "MODEL.RPN.NMS": 0.7, "INPUT.FORMAT": "<BGR>"}
    html = page.configuration_html(run(settings=settings, changed=["MODEL.RPN.NMS"]))
    assert 'id="search"' in html
    summaries = re.findall(r"<summary>([^<]*)</summary>", html)
    assert summaries == ["Different from the defaults (1)", "general (1)", "MODEL (1)", "MODEL.RPN (1)", "INPUT (1)"]
    assert html.count('class="changed"') == 2 and "&lt;BGR&gt;" in html
    assert page.configuration_html(run()) == ""


def test_samples_carry_their_pictures():
    picture = np.random.default_rng(0).integers(0, 255, (20, 30, 3), np.uint8)
    html = page.samples_html([Sample("<a>.png", picture, None, picture, {})])
    assert re.findall(r"<figcaption>([^<]*)", html) == ["image", "prediction"] and "&lt;a&gt;.png" in html
    data = re.findall(r'src="data:image/jpeg;base64,([^"]+)"', html)
    assert Image.open(io.BytesIO(base64.b64decode(data[0]))).size == (30, 20)
