"""For training scripts: says ahead what a sampler reads, and reports how a job gets on.

Imports nothing but Python's own library; torch is looked at only if the script has imported it.
"""
