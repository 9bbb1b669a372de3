"""From traces and generated workloads to the learned model, and what it is worth. Offline only:
nothing here is imported by a hub or a spoke."""
