"""A namespace's disk that can be filled and emptied."""

from hubspoke.adapters.lmdb_namespace import LmdbNamespace
from hubspoke.adapters.lmdb_writer import Write


class Disk:
    """Stands before an environment's commits: refuses them while `error` is set."""

    def __init__(self, store: LmdbNamespace) -> None:
        self.error: Exception | None = None
        self.attempts = 0
        writer = store._writer
        commit = writer._commit

        def checked(writes: list[Write]) -> None:
            if self.error is not None:
                self.attempts += 1
                raise self.error
            commit(writes)

        writer._commit = checked  # type: ignore[method-assign]
