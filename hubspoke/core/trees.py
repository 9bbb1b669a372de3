"""Boosted trees as plain arrays: what was trained elsewhere is only looked up here.

A tree is complete: node i has the children 2i + 1 and 2i + 2, a leaf above the last level is
repeated downwards behind a threshold that nothing exceeds. So all trees take the same number of
steps for all rows at once, and there is nothing to execute in a model file.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hubspoke.core.features import Matrix

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Trees:
    """An ensemble with one or more outputs.

    feature, threshold, value: trees x nodes; value: of inner nodes the mean of what lies below.
    base: of each output; tree t adds to output t mod outputs.
    """

    feature: npt.NDArray[np.int16]
    threshold: Floats
    value: Floats
    base: Floats

    def wrong(self, columns: int) -> str | None:
        """Why these arrays are no ensemble over so many columns; None if they are."""
        shape = self.feature.shape
        if len(shape) != 2 or self.threshold.shape != shape or self.value.shape != shape:
            return f"shapes {shape}, {self.threshold.shape}, {self.value.shape} do not agree"
        if self.base.ndim != 1 or not len(self.base) or shape[0] % len(self.base):
            return f"{shape[0]} trees for {self.base.shape} outputs"
        if shape[1] + 1 & shape[1] or not shape[1]:
            return f"{shape[1]} nodes are no complete tree"
        if self.feature.size and not 0 <= self.feature.min() <= self.feature.max() < columns:
            return "a feature that does not exist"
        if not (np.isfinite(self.value).all() and np.isfinite(self.base).all()):
            return "values that are no numbers"
        return None

    @property
    def depth(self) -> int:
        return int(self.feature.shape[1]).bit_length() - 1

    def scores(self, rows: Matrix) -> Floats:
        """rows x outputs, before any link function."""
        values = self.value.take(self._leaves(rows))
        by_output = values.reshape(len(rows), -1, len(self.base))
        found: Floats = self.base + np.add.reduce(by_output, axis=1)
        return found

    def _leaves(self, rows: Matrix) -> npt.NDArray[np.intp]:
        """rows x trees: places in the flat arrays."""
        nodes, cells = self.feature.shape[1], np.ascontiguousarray(rows)
        roots = np.arange(0, self.feature.size, nodes)
        lines = np.arange(0, cells.size, cells.shape[1])[:, None]
        at = np.zeros((len(rows), len(roots)), np.intp)
        for _ in range(self.depth):
            place = at + roots
            right = cells.take(self.feature.take(place) + lines) > self.threshold.take(place)
            at += at + 1
            at += right
        at += roots
        return at

    def effects(self, row: Matrix, output: int) -> tuple[float, Floats]:
        """What each column adds to one output for one row; with the first number it sums up to
        the score. A step down a tree counts for the column that it asks about (Saabas)."""
        columns = np.zeros(len(row))
        start = float(self.base[output])
        for t in range(output, len(self.feature), len(self.base)):
            start += float(self.value[t, 0])
            i = 0
            for _ in range(self.depth):
                f = int(self.feature[t, i])
                child = 2 * i + 1 + int(row[f] > self.threshold[t, i])
                columns[f] += self.value[t, child] - self.value[t, i]
                i = child
        return start, columns
