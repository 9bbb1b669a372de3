"""HubSpoke: a multi-region predictive read cache for machine-learning training data."""

__version__ = "0.1.0"
