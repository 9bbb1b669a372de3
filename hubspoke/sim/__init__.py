"""Deterministic simulation of hub and spokes, and what its histories are checked against."""
