"""A run's configuration, curves, scores and predictions as one HTML page."""
