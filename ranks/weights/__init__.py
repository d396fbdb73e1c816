"""Weights that several sessions, processes and models hold once; they can be replaced while serving."""
