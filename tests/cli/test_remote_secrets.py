"""Credentials and the URL of a remote stay in the process of the build."""

import json
import os
import shutil
import sys
from pathlib import Path

from commands import captured

from pallasc.cache.store import Store

SECRET = "hush-hush"
VARIABLES = (
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE",
    "AWS_SHARED_CREDENTIALS_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE",
    "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT_KEY", "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_CLIENT_SECRET", "AZURE_STORAGE_SAS_TOKEN", "NETRC", "PALLASC_REMOTE_TOKEN",
    "ACTIONS_RUNTIME_TOKEN", "HTTPS_PROXY",
)  # fmt: skip
FILES = (".aws/credentials", ".aws/config", ".netrc", ".config/gcloud/x.json", ".azure/token")
KERNELS = '''\
"""A kernel, and a Python spec, that write down all that they see."""

import json
import os
import pwd
import sys
from pathlib import Path

import pallasc
from pallasc.specs.library.elementwise import add

HERE = Path(__file__).parent


def read(path):
    try:
        return Path(path).read_text(errors="replace")
    except OSError as error:
        return type(error).__name__


def write_down(name):
    homes = [os.path.expanduser("~"), pwd.getpwuid(os.getuid()).pw_dir, Path.home()]
    seen = {
        "environ": dict(os.environ),
        "process": read("/proc/self/environ"),
        "arguments": [sys.argv, sys.orig_argv, read("/proc/self/cmdline")],
        "files": [read(Path(home, file)) for home in homes for file in FILES],
    }
    (HERE / name).write_text(json.dumps(seen))


FILES = %r
write_down(f"spec-{os.getpid()}.json")


def seeing(x, y):
    write_down(f"kernel-{os.getpid()}.json")
    return add(x, y, block_size=2048)


pallasc.declare(
    name="seeing",
    entry="kernels.py:seeing",
    targets=["h100-sxm"],
    args={"x": "f32[1024, 4096]", "y": "f32[1024, 4096]"},
)
'''


def test_neither_kernels_nor_python_specs_see_them(tmp_path: Path, warm_store: Store) -> None:
    home, store = tmp_path / "home", tmp_path / "store"
    shutil.copytree(warm_store.root, store)
    for name in FILES:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(SECRET)
    spec = tmp_path / "kernels.py"
    spec.write_text(KERNELS % (FILES,))
    remote = f"file://{tmp_path}/{SECRET}"
    environment = {
        **os.environ,
        **dict.fromkeys(VARIABLES, SECRET),
        "HOME": str(home),
        "PALLASC_REMOTE": remote,
        "PALLASC_REMOTE_WRITE": "1",
    }
    command = [sys.executable, "-P", "-m", "pallasc", "build", str(spec), "--jobs", "1"]
    ran = captured([*command, "--store", str(store)], env=environment)
    assert ran.returncode == 0, ran.stderr
    seen = {path.name.partition("-")[0]: path.read_text() for path in tmp_path.glob("*-*.json")}
    assert seen.keys() == {"spec", "kernel"}
    for text in seen.values():
        assert SECRET not in text
        assert {*json.loads(text)["files"]} == {"FileNotFoundError"}
    written = [path for path in store.rglob("*") if path.is_file()]
    assert written
    assert not any(SECRET.encode() in path.read_bytes() for path in written)
