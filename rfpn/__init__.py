"""Recurrent vision models trained at constant memory (after Linsley et al., 2020)."""

__version__ = "0.1.0"
