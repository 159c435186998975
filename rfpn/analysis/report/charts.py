"""Plotly figures of a report."""

import plotly.graph_objects as go

from rfpn.analysis.logs import Series
from rfpn.analysis.report.run import totals_of

COLORS = ("#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed", "#0891b2", "#db2777", "#65a30d", "#475569", "#a16207")
# titles of recurrent layers' scalars; others go by their names
RECURRENT_TITLES = {
    "residual": "residual ‖h(T) − h(T−1)‖ / ‖h(T)‖",
    "unconverged_share": "share of samples not converged",
    "truncated_share": "share of truncated series",
    "neumann_length": "length of the Neumann series (terms)",
    "penalty": "Lipschitz penalty, unweighted",
}
SCHEDULE_TITLES = {"lr": "learning rate", "time": "seconds an iteration", "max_mem": "GPU memory (MiB)"}
# scores that are drawn at first; the others appear when clicked on in the legend
_SHOWN = {"PQ", "PQ_th", "PQ_st", "IoU", "precision", "recall", "AP", "AP50", "AP75", "mIoU", "pACC"}
_SHOWN |= {"residual", "unconverged_share"}

# points of a line up to which each gets a mark
_MARKED = 50


def loss_chart(scalars: dict[str, Series]) -> go.Figure | None:
    """All losses against the iteration, with a switch between linear and logarithmic axes; None without losses."""
    names = [name for name in scalars if "loss" in name]
    if not names:
        return None
    names.sort(key=lambda name: (name != "total_loss", name))
    figure = _lines("losses", {name: scalars[name] for name in names}, height=380)
    figure.data[0].line.width = 3
    buttons = [
        {"label": kind, "method": "relayout", "args": [{"yaxis.type": kind}]} for kind in ("linear", "log")
    ]
    place = {"x": 1, "y": 1.16, "xanchor": "right", "yanchor": "top"}
    return figure.update_layout(updatemenus=[{"type": "buttons", "direction": "left", "buttons": buttons, **place}])


def recurrent_charts(scalars: dict[str, Series]) -> list[go.Figure]:
    """A figure for each quantity of the recurrent layers, with a line for each layer."""
    found: dict[str, dict[str, Series]] = {}
    for name, series in scalars.items():
        layer, _, quantity = name.partition("/")
        if layer.startswith("recurrent") and quantity:
            found.setdefault(quantity, {})[layer] = series
    order = sorted(found, key=lambda name: (name not in RECURRENT_TITLES, [*RECURRENT_TITLES, name].index(name)))
    figures = [_lines(RECURRENT_TITLES.get(name, name.replace("_", " ")), found[name]) for name in order]
    for name, figure in zip(order, figures):
        figure.update_yaxes(range=[-0.02, 1.02]) if name.endswith("share") else figure.update_yaxes(rangemode="tozero")
    return figures


def schedule_charts(scalars: dict[str, Series]) -> list[go.Figure]:
    """Learning rate, time and memory against the iteration."""
    figures = [_lines(title, {name: scalars[name]}) for name, title in SCHEDULE_TITLES.items() if name in scalars]
    # around a constant plotly would draw an axis from -1 to 1
    return [figure.update_yaxes(rangemode="tozero") for figure in figures]


def score_charts(scores: dict[str, dict[str, Series]]) -> list[go.Figure]:
    """A figure for each task that was evaluated more than once: its scores, those of single classes left out."""
    figures = []
    for task, series in scores.items():
        totals = totals_of(series)
        if all(len(iterations) < 2 for iterations, _ in totals.values()):
            continue
        figure = _lines(task, totals)
        for line in figure.data:
            line.visible = True if line.name in _SHOWN else "legendonly"
        figures.append(figure.update_layout(showlegend=True))
    return figures


def course_charts(courses: dict[str, dict[str, Series]]) -> list[go.Figure]:
    """Main score and residual against the step of processing, a line for each model and data set."""
    names = {score for course in courses.values() for score in course}
    main = next((name for name in ("PQ", "IoU") if name in names), None)
    shown = {main: f"{main} by step of processing", "residual": f"{RECURRENT_TITLES['residual']} by step"}
    figures = []
    for score in (score for score in shown if score in names):
        lines = {label: course[score] for label, course in courses.items() if score in course}
        figure = _lines(shown[score], lines)
        if score == "residual":
            # settled states differ by what a linear axis shows as 0
            figure.update_yaxes(type="log")
        figures.append(figure.update_xaxes(title_text="step").update_layout(showlegend=True))
    return figures


def steps_chart(title: str, pictures: dict[int, str], size: tuple[int, int], trained: range) -> go.Figure:
    """A picture for each step of processing, chosen by a slider or played.

    Args:
        pictures: data URI by step, ascending. size: (width, height) of all of them, pixels.
        trained: numbers of steps in training, marked on the slider.
    """
    names = [str(step) for step in pictures]
    labels = [f"{step}*" if step in trained else str(step) for step in pictures]
    frames = [go.Frame(name=name, data=[go.Image(source=uri)]) for name, uri in zip(names, pictures.values())]
    still = {"mode": "immediate", "frame": {"duration": 0, "redraw": True}, "transition": {"duration": 0}}
    film = {**still, "fromcurrent": True, "frame": {"duration": 350, "redraw": True}}
    marks = [{"label": label, "method": "animate", "args": [[name], still]} for label, name in zip(labels, names)]
    buttons = [
        {"label": "▶ play", "method": "animate", "args": [None, film]},
        {"label": "❚❚", "method": "animate", "args": [[None], still]},
    ]
    figure = go.Figure(go.Image(source=next(iter(pictures.values())), hoverinfo="skip"), frames=frames)
    hidden = {"visible": False, "fixedrange": True, "constrain": "domain"}
    figure.update_xaxes(**hidden, range=[-0.5, size[0] - 0.5])
    figure.update_yaxes(**hidden, range=[size[1] - 0.5, -0.5], scaleanchor="x")
    _style(figure, title, 470)
    return figure.update_layout(
        margin={"l": 10, "r": 10, "t": 50, "b": 90},
        sliders=[{"steps": marks, "active": 0, "currentvalue": {"prefix": "step "}, "pad": {"t": 10}}],
        updatemenus=[
            {"type": "buttons", "buttons": buttons, "direction": "left", "showactive": False}
            | {"x": 1, "y": 1.02, "xanchor": "right", "yanchor": "bottom", "pad": {"r": 0, "b": 0}}
        ],
    )


def _lines(title: str, series: dict[str, Series], height: int = 300) -> go.Figure:
    figure = go.Figure([
        # a single point makes no line
        go.Scatter(
            x=x, y=y, name=name, mode="lines+markers" if len(x) <= _MARKED else "lines",
            line={"color": COLORS[index % len(COLORS)]},
        )  # fmt: skip
        for index, (name, (x, y)) in enumerate(series.items())
    ])
    _style(figure, title, height)
    figure.update_xaxes(title_text="iteration")
    figure.update_yaxes(exponentformat="power")
    return figure.update_layout(showlegend=len(series) > 1, hovermode="x unified")


def _style(figure: go.Figure, title: str, height: int) -> None:
    figure.update_layout(
        title={"text": title, "x": 0, "xref": "paper", "font": {"size": 15}},
        template="plotly_white",
        font={"family": "system-ui, sans-serif", "color": "#1e293b"},
        height=height,
        margin={"l": 55, "r": 15, "t": 45, "b": 45},
        legend={"orientation": "h", "y": -0.35, "yanchor": "top"},
    )
