"""Describes what a model, a plan or a slice folder holds, as text and as a page."""
