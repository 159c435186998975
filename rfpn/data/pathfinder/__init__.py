"""Pathfinder: which of two long dashed contours does the white disc sit on?

The generator needs numpy and Pillow only; nothing here imports Detectron2.
"""
