"""Pathfinder: which of two long dashed contours does the white disc sit on?

The generator needs numpy, Pillow and tqdm only; this module imports nothing.
"""
