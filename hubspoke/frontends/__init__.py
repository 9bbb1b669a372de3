"""The doors: the only place where errors become status codes."""
