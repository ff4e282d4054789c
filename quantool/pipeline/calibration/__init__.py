"""Calibration: from feeds to statistics, in shards, by workers, resumable, and merged."""
