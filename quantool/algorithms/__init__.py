"""Accuracy algorithms: pure functions of statistics and weights, each with its paper and equation."""
