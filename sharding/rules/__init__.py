"""Operator rules, one module per operator family."""
