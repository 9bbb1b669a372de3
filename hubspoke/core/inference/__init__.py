"""Orders computed from their seed, and the seed found from the first reads of an epoch."""
