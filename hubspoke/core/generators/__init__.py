"""Generators propose the coming accesses of a stream, each in its own file."""
