"""The predictor in virtual time: workloads, the core that production runs, and what it reaches."""
