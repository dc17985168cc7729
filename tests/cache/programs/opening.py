"""Many processes open a new store at the same moment, its totals included.

Usage: opening.py ROOT PROCESSES. Prints JSON: everything that was wrong.
"""

from __future__ import annotations

import functools
import json
import sys
import traceback
from pathlib import Path
from typing import Any

from content import artifact, blobs, is_right, key
from together import together

from pallasc.cache.inventory import stats
from pallasc.cache.store import Store
from pallasc.cache.uses import Session, read_totals


def open_new(root: Path, number: int) -> dict[str, Any]:
    """Publish, use and find something, and ask for the statistics, as the first in the store."""
    try:
        return {"wrong": wrong(Store(root), number)}
    except Exception:
        return {"wrong": [traceback.format_exc()]}


def wrong(store: Store, number: int) -> list[str]:
    """Return what is not as it should be."""
    with Session(store) as session:
        if not store.put_artifact(key(number), artifact(number), blobs(number)).stored:
            return [f"{number} was not stored"]
        session.made(key(number), seconds=1.0)
        found = store.get_artifact(key(number), verify=True)
    if found is None or not is_right(found, number):
        return [f"{number} was not found"]
    read_totals(store)
    figures = stats(store)
    return store.warnings if figures.entries else ["the inventory is empty"]


def main() -> None:
    """Run the processes; afterwards the totals must have what all of them did."""
    root, processes = Path(sys.argv[1]), int(sys.argv[2])
    answers = together([functools.partial(open_new, root, seed) for seed in range(processes)])
    found = [text for answer in answers for text in answer["wrong"]]
    figures = stats(Store(root))
    if (figures.entries, read_totals(Store(root)).made) != (processes, processes):
        found.append(f"{figures.entries} entries, {read_totals(Store(root)).made} made")
    print(json.dumps({"processes": processes, "wrong": found}))
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
