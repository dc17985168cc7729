"""Lower kernels, compile some, and print keys and digests: compile.py RESULT FOLDER CASE...

A case is FOLDER/ENTRY|ARRAY|STATIC|TARGET|compile; the last part may be missing.
"""

import hashlib
import json
import sys
from pathlib import Path

from pallasc.compiler.lowering.compile import Tools, action_fields, compile_job, lower_job
from pallasc.compiler.lowering.entry import import_function
from pallasc.compiler.lowering.lower import Job
from pallasc.compiler.toolchain.setup import prepare
from pallasc.specs.arrays import resolve_array
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.canonical import labelled_key
from pallasc.specs.gpus import resolve_target

root = Path(sys.argv[2])
setup = prepare()
tools = Tools({"made": "by a test"}, setup.toolchain.ptxas, {}, {}, setup.toolkit)
found = {}
for case in sys.argv[3:]:
    place, array, static, target, *rest = case.split("|")
    folder, _, entry = place.rpartition("/")
    function = import_function(entry, str(root / folder))
    sys.modules.pop("scales", None)
    args = {"x": resolve_array(array)}
    job = Job(function, args, json.loads(static), resolve_target(target))
    lowered = lower_job(job)
    answer = {"action": labelled_key(action_fields(job, lowered, tools)), "module": lowered.module}
    if rest:
        record, blobs = compile_job(job, lowered, tools)
        answer["artifact"] = Artifact(record, blobs.__getitem__).digest
        answer["blobs"] = hashlib.sha256(b"".join(blobs[key] for key in sorted(blobs))).hexdigest()
    found[case] = answer
Path(sys.argv[1]).write_text(json.dumps(found))
