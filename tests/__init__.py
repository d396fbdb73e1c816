"""Tests; the folders mirror the packages, `end_to_end` runs whole jobs."""
