"""The work that a cluster has: pieces by name, and what waits until a worker has the session.

A worker that lacks the session of its work is sent both together. What else it was given meanwhile
is held until that has arrived, so that the session travels to each worker once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pallasc.compiler.cluster.link import Link, Parcel
from pallasc.compiler.cluster.payloads import Work, name_of
from pallasc.compiler.cluster.pieces import Item, Piece


class UnderWay:
    """Work that was sent and is not settled.

    Args:
        link: the connection that carries it.

    Attributes:
        session: what all of it belongs to, as bytes.
        session_name: its name, "" before there is one.
        pieces: by what dask calls them.
    """

    def __init__(self, link: Link) -> None:
        self.session, self.session_name = b"", ""
        self.pieces: dict[str, Piece] = {}
        self._link = link
        self._held: dict[str, list[Item]] = {}
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self.pieces or self._held)

    def enter(self, session: bytes) -> None:
        """Have all later work belong to a session."""
        self.session, self.session_name = session, name_of(session)

    def add(self, piece: Piece) -> Parcel:
        """Return a piece as it travels."""
        self._count += 1
        key = f"{self._link.topic}-{self._count}"
        arch, folders, declared = piece.items[0].task.group
        work = Work(
            session=self.session_name,
            arch=arch,
            folders=folders,
            declared=dict(declared),
            requests=tuple(item.prepare().to_json() for item in piece.items),
            topic=self._link.topic,
            key=key,
        )
        self.pieces[key] = piece
        session = self.session if piece.brings else b""
        return Parcel(key, work.to_bytes(), session, piece.workers, strictly=not piece.brings)

    def bring_session(self, piece: Piece, worker: str) -> None:
        """Send a piece once more, with the session that its worker lacks."""
        if worker in self._held:  # the session is under way
            self._held[worker] += piece.items
            return
        self._held[worker] = []
        again = Piece(piece.items, workers=[worker], brings=worker, asks=piece.asks)
        self._link.send([self.add(again)])

    def held_for(self, piece: Piece) -> list[Item]:
        """Remove and return what waited until a piece brought the session to its worker."""
        worker, piece.brings = piece.brings, ""
        return self._held.pop(worker, [])

    def asks(self) -> bool:
        """Tell whether a worker that had refused is being asked again."""
        return any(piece.asks for piece in self.pieces.values())

    def take_from(self, workers: Collection[str]) -> list[Item]:
        """Remove and return what was for workers that are not among these."""
        gone = [
            key
            for key, piece in self.pieces.items()
            if piece.workers is not None and not {*piece.workers} & {*workers}
        ]
        if gone:
            self.cancel(gone)
        pieces = [self.pieces.pop(key) for key in gone]
        return [item for piece in pieces for item in [*self.held_for(piece), *piece.items]]

    def cancel(self, keys: Sequence[str]) -> None:
        """Have pieces stopped; nothing is heard of them any more."""
        self._link.cancel(keys)

    def clear(self) -> list[Item]:
        """Remove and return all items."""
        items = [item for piece in self.pieces.values() for item in piece.items]
        items += [item for held in self._held.values() for item in held]
        self.pieces, self._held = {}, {}
        return items
