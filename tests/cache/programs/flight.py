"""Several processes want the same cold keys; each that has to make one writes a line.

Usage: flight.py ROOT PROCESSES KEYS. Prints how many times something was made.
"""

import os
import random
import sys
from pathlib import Path

from content import artifact, blobs, key

from pallasc.cache.store import Store


def want(store: Store, number: int, made: int) -> None:
    """Get an artifact as a build does: look, wait for whoever makes it, look again, make it."""
    with store.single_flight(key(number)):
        if store.get_artifact(key(number), verify=True) is None:
            os.write(made, f"{number}\n".encode())
            store.put_artifact(key(number), artifact(number), blobs(number))


def main() -> None:
    """Run the processes, each with its own order of the keys."""
    root, processes, keys = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    made_read, made_write = os.pipe()
    children = []
    for seed in range(processes):
        child = os.fork()
        if not child:
            order = random.Random(seed).sample(range(keys), keys)
            for number in order:
                want(Store(root), number, made_write)
            os._exit(0)
        children.append(child)
    os.close(made_write)
    codes = [os.waitpid(child, 0)[1] for child in children]
    with open(made_read, encoding="utf-8") as file:
        print(len(file.readlines()), sum(codes))


if __name__ == "__main__":
    main()
