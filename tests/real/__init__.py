"""Trained models out of public packages, real inputs made here, and the incumbent on the same data."""
