"""Figures of a report."""

from rfpn.analysis.report.charts import (
    course_charts,
    loss_chart,
    recurrent_charts,
    schedule_charts,
    score_charts,
    steps_chart,
)

SERIES = ([19, 39], [2.0, 1.0])


def test_losses_with_the_total_first():
    figure = loss_chart({"loss_mask": SERIES, "lr": SERIES, "total_loss": ([19, 39], [3.0, 1.5])})
    assert [line.name for line in figure.data] == ["total_loss", "loss_mask"]
    assert list(figure.data[0].x) == [19, 39] and list(figure.data[0].y) == [3.0, 1.5]
    assert [button.args[0] for button in figure.layout.updatemenus[0].buttons] == [
        {"yaxis.type": "linear"},
        {"yaxis.type": "log"},
    ]
    assert loss_chart({"lr": SERIES}) is None


def test_a_figure_for_each_quantity_with_a_line_for_each_layer():
    names = ["recurrent_0/penalty", "recurrent_1/penalty", "recurrent_0/residual", "recurrent_0/novel_thing", "rpn/x"]
    figures = recurrent_charts(dict.fromkeys(names, SERIES))
    assert [len(figure.data) for figure in figures] == [1, 2, 1]
    assert [figure.layout.title.text.split()[0] for figure in figures] == ["residual", "Lipschitz", "novel"]


def test_schedule_takes_what_there_is():
    (figure,) = schedule_charts({"lr": SERIES})
    assert figure.layout.title.text == "learning rate" and figure.layout.yaxis.rangemode == "tozero"


def test_a_single_point_can_be_seen_and_many_are_a_line():
    modes = [loss_chart({"loss": (list(range(n)), [1.0] * n)}).data[0].mode for n in (1, 500)]
    assert modes == ["lines+markers", "lines"]


def test_scores_leave_out_single_classes_and_single_evaluations():
    once = {"PQ": ([39], [50.0])}
    scores = {"bbox": {"AP": SERIES, "AP-cat": SERIES, "APl": SERIES}, "panoptic_seg": once}
    figure, settled = score_charts({**scores, "convergence": {"residual": SERIES}})
    assert [(line.name, line.visible) for line in figure.data] == [("AP", True), ("APl", "legendonly")]
    assert [(line.name, line.visible) for line in settled.data] == [("residual", True)]


def test_time_courses_of_several_models():
    courses = {"a": {"PQ": SERIES, "SQ": SERIES, "residual": SERIES}, "b": {"PQ": SERIES}}
    figures = course_charts(courses)
    assert [[line.name for line in figure.data] for figure in figures] == [["a", "b"], ["a"]]
    assert [figure.layout.title.text.split()[0] for figure in figures] == ["PQ", "residual"]
    assert [figure.layout.yaxis.type for figure in figures] == [None, "log"]
    assert course_charts({}) == []


def test_the_slider_has_a_frame_for_each_step():
    pictures = {1: "data:1", 4: "data:4", 6: "data:6"}
    figure = steps_chart("photo.jpg", pictures, (320, 200), range(4, 7))
    assert [(frame.name, frame.data[0].source) for frame in figure.frames] == [
        ("1", "data:1"),
        ("4", "data:4"),
        ("6", "data:6"),
    ]
    (slider,) = figure.layout.sliders
    assert [step.label for step in slider.steps] == ["1", "4*", "6*"]
    assert [list(step.args[0]) for step in slider.steps] == [["1"], ["4"], ["6"]]
    assert figure.data[0].source == "data:1" and list(figure.layout.yaxis.range) == [199.5, -0.5]
