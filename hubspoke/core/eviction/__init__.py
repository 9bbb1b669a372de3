"""Which block goes when room is needed: a port (`policy`), two policies, and who chooses."""
