"""Datasets, mappers and checks. Import the submodule you need: this package itself imports nothing."""
