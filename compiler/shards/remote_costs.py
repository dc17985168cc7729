"""Costs in a remote store: snapshots of what variants took, beside what they were compiled to.

    snapshot = zstd, see `specs/bundle/compress.py`, of JSON after its size:
               raw:u32 { "schema": 1, "milliseconds": { id: whole number } }

All jobs of a run must divide by the same record, while other runs write new ones. So a job takes
the newest snapshot that is older than the commit that is built: all jobs of a run have that. Jobs
of one shard write none; builds of everything do, and merges.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pallasc.compiler.builds.repository import commit_time_s
from pallasc.compiler.shards.costs import Costs
from pallasc.errors import CorruptError, ToolError
from pallasc.specs.canonical import canonical_json
from pallasc.specs.lock import settled_cost
from pallasc.specs.untrusted_json import as_object, as_whole, parse_json

if TYPE_CHECKING:
    from pallasc.cache.remote.remote import Remote
    from pallasc.cache.remote.settings import RemoteSettings
    from pallasc.cache.store import Store
    from pallasc.compiler.inputs.remembered_toolchain import RememberedToolchain
    from pallasc.compiler.toolchain.setup import Setup

_SCHEMA = 1
_SIZE = struct.Struct("<I")
_LEVEL = 6
_MOST_BYTES = 2**28
_MOST_MS = 10**12
_FOREVER_S = 2.0**40


def remote_costs(
    settings: RemoteSettings, store: Store, setup: Setup | RememberedToolchain, *, folder: str
) -> Costs:
    """Return the costs that all jobs of this commit divide by; none where there is no snapshot.

    Args:
        settings: where the remote store is.
        store: the local store.
        setup: the toolchain.
        folder: a folder of the repository that is built; outside of one there are no costs, since
            no job has a commit.

    Raises:
        ToolError: the commit cannot be read, or the remote store cannot be asked; other jobs may
            have had an answer.
    """
    before_s = commit_time_s(Path(folder))
    if before_s is None:
        return _without_commit(folder)
    # That the build goes on without the remote store would not be true; the error below says why.
    remote = _opened(settings, store, setup, tell=lambda _: None)
    try:
        data = remote.costs(before_s, is_needed=True)
    finally:
        stats = remote.finish()
    why = stats.tripped or next(iter(stats.refused), "")
    if why:
        raise ToolError(
            f"the costs that all shards are divided by cannot be read: {why.rstrip('.')}.",
            hint="Start this job again, or give all jobs a lock file or --costs FILE.",
        )
    times = {} if data is None else _decode(data)
    if not times:
        return Costs({}, missing="the remote store has none that are older than the commit")
    return Costs({n: ms / 1000 for n, ms in times.items()}, "the remote store")


def _without_commit(folder: str) -> Costs:
    """Return that there are no costs, as for all jobs that build outside of a repository.

    Raises:
        ToolError: there is a repository, but its commit cannot be read; other jobs may read it.
    """
    place = Path(folder).absolute()
    root = next((each for each in (place, *place.parents) if (each / ".git").exists()), None)
    if root is None:
        return Costs(
            {},
            missing=f"{folder} is in no git repository, and the time of its commit decides which "
            "costs of the remote store all shards take",
        )
    raise ToolError(
        f"the costs that all shards are divided by cannot be chosen: git does not tell the time of "
        f"the commit in {root}.",
        hint="Install git and let it read that folder (git config --global --add safe.directory "
        f"{root}), or give all jobs a lock file or --costs FILE.",
    )


def send_costs(
    settings: RemoteSettings,
    store: Store,
    setup: Setup | RememberedToolchain,
    times: Mapping[str, float],
    *,
    lost_s: float = 0.0,
) -> bool:
    """Write a snapshot with new times, if they differ from those that the remote store has.

    Args:
        settings: where the remote store is; nothing is sent unless it may be written.
        store: the local store.
        setup: the toolchain.
        times: compile times in seconds by id.
        lost_s: how long the build has waited for this remote store in vain.

    Returns:
        Whether there was something to write, and time left for it.
    """
    from pallasc.cache.remote.guard import is_spent

    if not settings.write or not times or is_spent(lost_s):
        return False
    remote = _opened(settings, store, setup, tell=store.tell, lost_s=lost_s)
    try:
        data = remote.costs(_FOREVER_S)
        before = {} if data is None else _decode(data)
        now = dict(before)
        for name, now_s in times.items():
            old_s = before[name] / 1000 if name in before else None
            now[name] = round(1000 * settled_cost(old_s, now_s))
        if now != before:
            remote.offer_costs(_encode(now))
    finally:
        remote.finish()
    return now != before


def _opened(
    settings: RemoteSettings,
    store: Store,
    setup: Setup | RememberedToolchain,
    *,
    tell: Callable[[str], None],
    lost_s: float = 0.0,
) -> Remote:
    from pallasc.cache.remote.guard import after
    from pallasc.cache.remote.remote import Remote
    from pallasc.compiler.builds.remote_tier import namespace

    remote = Remote.open(settings, store, tell=tell, limits=after(lost_s))
    remote.prepare(namespace(setup))
    return remote


def _encode(milliseconds: Mapping[str, int]) -> bytes:
    from pallasc.specs.bundle.compress import compress

    raw = canonical_json({"schema": _SCHEMA, "milliseconds": dict(milliseconds)})
    return _SIZE.pack(len(raw)) + compress(raw, _LEVEL)


def _decode(data: bytes) -> dict[str, int]:
    """Return the times of a snapshot, none if it is malformed: it comes from strangers."""
    from pallasc.specs.bundle.compress import decompress

    try:
        (size,) = _SIZE.unpack_from(data)
        if size > _MOST_BYTES:
            return {}
        body = as_object(parse_json(decompress(data[_SIZE.size :], size)))
        if body["schema"] != _SCHEMA:
            return {}
        times = {name: as_whole(ms) for name, ms in as_object(body["milliseconds"]).items()}
    except (CorruptError, KeyError, TypeError, struct.error):
        return {}
    return times if all(0 <= ms <= _MOST_MS for ms in times.values()) else {}
