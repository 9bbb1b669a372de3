"""Facts in, findings out: no file, socket, clock or process (checked in CI)."""
