"""At the start of a process with stand-in GPUs: let JAX look for them, and count its modules."""

import atexit
import collections
import json
import os
import time

_CACHE = "/jax/compilation_cache/"
_counts = collections.Counter()
_seconds = collections.Counter()
_start_s = time.monotonic()


def _prepare():
    import jax
    from jax._src import hardware_utils

    hardware_utils.has_visible_nvidia_gpu = lambda: True  # there is no device file
    jax.monitoring.register_event_listener(lambda event, **_: _counts.update([event]))
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: _seconds.update({event: seconds})
    )


def _write():
    requests, hits = _counts[f"{_CACHE}compile_requests_use_cache"], _counts[f"{_CACHE}cache_hits"]
    data = {"requests": requests, "hits": hits, "compiled": requests - hits}
    steps = (seconds for event, seconds in _seconds.items() if "/jax/core/compile/" in event)
    data["compile_s"] = sum(steps)
    with open(os.environ["COUNTED_IN"], "w") as file:
        json.dump({**data, "seconds": time.monotonic() - _start_s}, file)


if os.environ.get("JAX_PLATFORMS") == "cuda":
    _prepare()
if "COUNTED_IN" in os.environ:
    atexit.register(_write)
