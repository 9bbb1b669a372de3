"""Belady's MIN with bypass as a policy in a running cache.

It knows from a trace how often and when each atom (see `belady`) will be read. A run's reads come
in another order than the trace's, as workers overtake each other; so the n-th read of an atom is
taken for its n-th in the trace. What is read more often than in the trace is not kept.
"""

import numpy as np

from hubspoke.sim.prediction.belady import (
    Atoms,
    Ints,
    Words,
    bits_for,
    clear_bit,
    largest,
    next_uses,
    set_bit,
)
from hubspoke.sim.prediction.compiled import compiled
from hubspoke.sim.prediction.page_stores import (
    ABSENT,
    AHEAD,
    COMING,
    HERE,
    PLACE,
    Pages,
    States,
)


class FutureStore:
    """See `page_stores.PageStore`. atoms: of the trace, in pages."""

    def __init__(self, capacity: int, pages: int, atoms: Atoms) -> None:
        self.states = np.zeros(pages, np.uint8)
        steps = int((atoms.last - atoms.first).sum())
        n = len(atoms.weight)
        self._edges = atoms.edges
        self._following = next_uses(atoms.first, atoms.last, n, steps)
        # Of each step its atom, of each atom the step at which it is read next.
        self._owner, self._coming = _owners(atoms.first, atoms.last, n, steps)
        self._here = np.zeros(n, np.int64)  # pages of the atom that are stored
        self._top = np.zeros(n, np.int64)  # past the last of them
        self._words = bits_for(steps)  # next reads of atoms of which something is here
        self._room = np.array([capacity], np.int64)

    def touch(self, first: int, end: int) -> None:
        a, b = np.searchsorted(self._edges, (first, end)).tolist()
        _touch(
            self.states,
            (self._coming, self._here, self._top),
            self._following,
            self._words,
            self._room,
            a,
            b,
        )

    def admit(self, first: int, end: int) -> int:
        return _admit(
            self.states,
            (self._coming, self._here, self._top),
            self._edges,
            self._owner,
            self._words,
            self._room,
            first,
            end,
        )


OfAtoms = tuple[Pages, Ints, Ints]  # coming, here, top


@compiled
def _owners(first: Ints, last: Ints, atoms: int, steps: int) -> tuple[Pages, Pages]:
    owner = np.empty(steps, np.int32)
    coming = np.full(atoms, -1, np.int32)
    step = 0
    for read in range(len(first)):
        for atom in range(first[read], last[read]):
            owner[step] = atom
            if coming[atom] < 0:
                coming[atom] = step
            step += 1
    return owner, coming


@compiled
def _drop(states: States, of_atoms: OfAtoms, room: Ints, atom: int) -> None:
    """The last page of the atom that is here."""
    _, here, top = of_atoms
    page = top[atom] - 1
    while states[page] & PLACE != HERE:
        page -= 1
    states[page] = ABSENT
    top[atom] = page
    here[atom] -= 1
    room[0] += 1


@compiled
def _touch(
    states: States,
    of_atoms: OfAtoms,
    following: Pages,
    words: Words,
    room: Ints,
    a: int,
    b: int,
) -> None:
    """Atoms a .. b - 1 are read now."""
    coming, here, _ = of_atoms
    for atom in range(a, b):
        if coming[atom] < 0:
            continue
        if here[atom] > 0:
            clear_bit(words, coming[atom])
        coming[atom] = following[coming[atom]]
        if coming[atom] < 0:
            while here[atom] > 0:
                _drop(states, of_atoms, room, atom)
        elif here[atom] > 0:
            set_bit(words, coming[atom])


@compiled
def _admit(
    states: States,
    of_atoms: OfAtoms,
    edges: Ints,
    owner: Pages,
    words: Words,
    room: Ints,
    first: int,
    end: int,
) -> int:
    coming, here, top = of_atoms
    atom = np.searchsorted(edges, first, "right") - 1
    for page in range(first, end):
        while page >= edges[atom + 1]:
            atom += 1
        if states[page] & PLACE != COMING:
            continue
        if coming[atom] < 0:
            states[page] = ABSENT
            continue
        if here[atom] == 0:
            set_bit(words, coming[atom])
        here[atom] += 1
        top[atom] = max(top[atom], page + 1)
        states[page] = states[page] & AHEAD | HERE
        room[0] -= 1
        if room[0] < 0:
            victim = owner[largest(words)]
            _drop(states, of_atoms, room, victim)
            if here[victim] == 0:
                clear_bit(words, coming[victim])
    stored = 0
    for page in range(first, end):
        stored += states[page] & PLACE == HERE
    return stored
