"""OUTPUT_DIR: made, claimed by one training at a time, and with the ``config.yaml`` of its training kept."""

import contextlib
import errno
import fcntl
import logging
import os
import shutil
from pathlib import Path
from typing import Iterator

from detectron2.config import CfgNode
from detectron2.utils import comm

from rfpn.data.files import locked, whole_file


def make_output_dir(cfg: CfgNode) -> None:
    """Make OUTPUT_DIR. Raises OSError naming it where it cannot be made or written to."""
    path = cfg.OUTPUT_DIR and os.path.abspath(cfg.OUTPUT_DIR)
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise OSError(f"OUTPUT_DIR {path!r} cannot be made: {error.strerror}") from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise PermissionError(f"OUTPUT_DIR {path!r} cannot be written to")


def claim(folder: str) -> None:
    """Keep other trainings out of a folder as long as this process lives. Raises ValueError where one is at work there."""
    # left open: the system lets go of the lock when this process ends, however it does; worker processes never have it
    lock = os.open(os.path.join(folder, ".lock"), os.O_RDWR | os.O_CREAT)
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # any other error means that the file system has no locks
        if error.errno in (errno.EACCES, errno.EAGAIN):
            raise ValueError(
                f"OUTPUT_DIR {os.path.abspath(folder)} is in use: another training writes its checkpoints there; end it, or "
                "give this one another OUTPUT_DIR"
            ) from None


@contextlib.contextmanager
def kept_record(folder: str, evaluating: bool) -> Iterator[None]:
    """Keep the ``config.yaml`` of a training while Detectron2 writes its own under that name.

    An evaluation's goes to ``config_eval.yaml``, or stays where no training has left a ``config.yaml``. A training's is
    removed, since the trainer writes its own once all is built; so is one that was left half written.
    """
    if not comm.is_main_process():
        yield
        return
    path, kept = (os.path.join(folder, name) for name in ("config.yaml", "config.yaml.kept"))
    logger = logging.getLogger("detectron2")
    # evaluations may well start together
    with locked(os.path.join(folder, ".config")), _silent_on_its_place(logger):
        trained, record = _put_aside(path, kept), None
        try:
            yield
            if evaluating:
                record = os.path.join(folder, "config_eval.yaml") if trained else path
                os.replace(path, record)
                logger.info("settings of this evaluation: %s", record)
        finally:
            if trained:
                os.replace(kept, path)
            elif record != path:
                Path(path).unlink(missing_ok=True)


def _put_aside(path: str, kept: str) -> bool:
    """Copy a file to ``kept``, unless that is there already: left by a launch that was killed. Whether there is one then."""
    # not moved, because it may itself be the --config-file
    if os.path.isfile(path) and not os.path.isfile(kept):
        with whole_file(kept) as temporary:
            shutil.copyfile(path, temporary)
    return os.path.isfile(kept)


@contextlib.contextmanager
def _silent_on_its_place(logger: logging.Logger) -> Iterator[None]:
    """Leave out Detectron2's line on where it saved the configuration: that file does not stay."""

    def of_other_things(entry: logging.LogRecord) -> bool:
        return not entry.getMessage().startswith("Full config saved to")

    logger.addFilter(of_other_things)
    try:
        yield
    finally:
        logger.removeFilter(of_other_things)
