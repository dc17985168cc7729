"""Build spec files; print status and digest of each variant as JSON: build.py STORE JOBS SPEC..."""

import json
import sys

from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.collect import SpecReader
from pallasc.compiler.builds.options import Options
from pallasc.specs.loading.matrix import expand

_, root, jobs, *paths = sys.argv
store = Store(root)
variants = expand(SpecReader(store=store).specs(paths))
report = build(variants, store=store, options=Options(jobs=int(jobs)))
found = [(result.status, result.artifact and result.artifact.digest) for result in report.results]
print(json.dumps(found))
