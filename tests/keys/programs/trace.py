"""Run the kernels of a spec as a worker does before JAX sees them, and print their manifests.

trace.py SPEC FAKE_SITE VARIABLES: records imports and reads, imports entry points and static
arguments, calls each function with plain numbers, and asks for the sources that it reached.
"""

import json
import os
import site
import sys
import tempfile

from msgspec import structs

from pallasc.compiler.inputs import recorders
from pallasc.compiler.toolchain import modules
from pallasc.specs.settings import PLACES, SYSTEM_PATH

_, spec, fake_site, given = sys.argv
site.USER_SITE = fake_site
sys.path.insert(0, fake_site)
declared = json.loads(given)
scratch = tempfile.TemporaryDirectory()
recorders.isolate_process(scratch.name, "trace", hidden=PLACES, path=SYSTEM_PATH)
modules.site_folders.cache_clear()
recorders.record_imports()

from pallasc.cache.stat_digest import FileDigests  # noqa: E402
from pallasc.compiler.inputs.lookup import named_entries  # noqa: E402
from pallasc.compiler.inputs.manifest import make_manifest  # noqa: E402
from pallasc.compiler.workers.worker import _job, entry_sources  # noqa: E402
from pallasc.specs.loading.matrix import expand  # noqa: E402
from pallasc.specs.loading.yaml_loader import load_yaml  # noqa: E402

found = {}
variants = expand(load_yaml(spec))
recorders.expose_variables(
    {name: declared.get(name) for variant in variants for name in variant.env}
)
recorders.enter(os.path.dirname(spec))
for variant in variants:
    job = _job(variant)
    job.function(**dict.fromkeys(variant.args, 3.0), **job.static)
    read = entry_sources(variant, named_entries(variant))
    manifest = make_manifest("0" * 64, read, FileDigests())
    unsaid = {name: sorted(getattr(read, name)) for name in ("unknown", "unseen", "altered")}
    found[variant.name] = {**structs.asdict(manifest), **unsaid}
print(json.dumps(found))
