"""Several processes want the same cold keys, each in its own order.

Usage: flight.py ROOT PROCESSES KEYS. Prints how many times something was made, and how many
processes failed.
"""

import random
import sys
from pathlib import Path

from content import artifact, blobs, key
from together import together

from pallasc.cache.store import Store


def work(root: Path, seed: int, keys: int) -> dict[str, int]:
    """Get artifacts as builds do: wait for whoever makes one, look, make it."""
    made = 0
    for number in random.Random(seed).sample(range(keys), keys):
        store = Store(root)
        with store.single_flight(key(number)):
            if store.get_artifact(key(number), verify=True) is None:
                made += 1
                store.put_artifact(key(number), artifact(number), blobs(number))
    return {"made": made}


def main() -> None:
    root, processes, keys = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    works = [lambda seed=seed: work(root, seed, keys) for seed in range(processes)]
    tallies = together(works)
    print(sum(tally.get("made", 0) for tally in tallies), sum("wrong" in t for t in tallies))


if __name__ == "__main__":
    main()
