"""What a model returned for a picture, as evaluators read it."""

from typing import Any


def required_output(output: dict, key: str, record: dict) -> Any:
    """``output[key]`` of one picture.

    Args:
        output: what the model returned for it. record: its input, with ``file_name``.

    Raises:
        ValueError: naming the picture and what the model did not return.
    """
    if key not in output:
        raise ValueError(
            f"{record['file_name']}: the model returned no {key!r}, only {', '.join(output) or 'nothing'}; return it as "
            "Detectron2's PanopticFPN does, or override Trainer.build_evaluator with one that does not score it"
        )
    return output[key]
