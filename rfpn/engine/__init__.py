"""Training on top of Detectron2's loop: launching, set-up, trainer, checkpoints."""
