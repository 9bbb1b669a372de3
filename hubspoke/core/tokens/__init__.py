"""Token files read at computed places: what is read next of one large object, and when."""
