"""A graph written otherwise with the same answers, so that it can be split."""
