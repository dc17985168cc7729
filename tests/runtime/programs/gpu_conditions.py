"""Run `check_gpu.py` of a packed folder under conditions that no machine brings about in time.

Usage: gpu_conditions.py FOLDER CONDITIONS ARGUMENTS… with CONDITIONS a JSON object: `numbers_s`,
how long a unit of numbers may take; `spent`, whether the time of the run is over as soon as the
machine has answered.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from typing import Any


def main() -> int:
    """Run the command."""
    folder, conditions = sys.argv[1], json.loads(sys.argv[2])
    sys.path.insert(0, folder)
    import check_gpu
    import part_numbers

    units, machine = part_numbers.units, check_gpu.Check.machine

    def shorter(*given: Any) -> list[Any]:
        limit_s = conditions.get("numbers_s")
        return [replace(one, limit_s=limit_s or one.limit_s) for one in units(*given)]

    def asked(check: Any) -> Any:
        found = machine(check)
        if conditions.get("spent"):
            check.schedule.ends_at = time.monotonic()
        return found

    part_numbers.units, check_gpu.Check.machine = shorter, asked
    return int(check_gpu.main(sys.argv[3:]))


sys.exit(main())
