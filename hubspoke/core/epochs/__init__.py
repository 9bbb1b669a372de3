"""Data sets that a job reads once an epoch: items, jobs, known orders."""
