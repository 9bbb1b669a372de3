"""Plans that jobs post: what they will read, exactly, in order."""
