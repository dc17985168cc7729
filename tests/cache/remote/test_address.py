"""URLs of remotes: taken apart, refused, and never shown with what they may hold of credentials."""

import pytest

from pallasc.cache.remote.settings import parse_address, read_settings
from pallasc.errors import SpecError
from pallasc.specs.settings import BuildSettings

SECRET = "s3cr3t-hunter2"


@pytest.mark.parametrize(
    ("url", "text", "place", "path"),
    [
        ("file:///srv/kernels/", "file:///srv/kernels", "", "/srv/kernels"),
        ("file://localhost/srv/a%20b", "file:///srv/a b", "", "/srv/a b"),
        ("s3://bucket/a/b/", "s3://bucket/a/b", "bucket", "a/b"),
        ("GS://my.bucket/x", "gs://my.bucket/x", "my.bucket", "x"),
        ("http://[::1]:80/x", "http://[::1]:80/x", "[::1]:80", "x"),
        (f"https://me:{SECRET}@host/x", "https://host/x", "host", "x"),
    ],
)
def test_an_address(url: str, text: str, place: str, path: str) -> None:
    address = parse_address(url)
    assert (str(address), address.place, address.path) == (text, place, path)
    assert SECRET not in repr(address)
    assert parse_address("https://me%40work:p%3Aw@host").login == ("me@work", "p:w")


@pytest.mark.parametrize(
    "url",
    [
        "", "/srv/kernels", "ftp://host/x", "file://host/x", "file://", "file:relative", "s3:///x",
        f"s3://key:{SECRET}@bucket/x", "s3://bucket/a/../b", "s3://bucket/a//b", "s3://bucket/a b",
        "https://", "https://host:99999/x", f"https://host/x?sig={SECRET}",
        f"https://host/x#{SECRET}", f"https://me:{SECRET}@/x", f"{SECRET}://host",
        f"https://me:{SECRET}@ho st/x", f"https://[{SECRET}/x",
    ],
)  # fmt: skip
def test_what_is_not_an_address_is_refused_without_quoting_it(url: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_address(url)
    error: BaseException | None = caught.value
    assert caught.value.hint
    while error is not None:
        assert SECRET not in f"{error!r} {error}" or url.startswith(SECRET)
        error = error.__cause__


def test_the_command_line_counts_before_the_environment_before_the_project() -> None:
    environ = {"PALLASC_REMOTE": "file:///b", "PALLASC_REMOTE_WRITE": "1"}
    project = BuildSettings("file:///c", remote_write=False, remote_signed="required")
    found = [
        read_settings(environ, project, url="file:///a", write=False),
        read_settings(environ, project),
        read_settings({}, project),
    ]
    assert [s and (str(s.address), s.write, s.signed) for s in found] == [
        ("file:///a", False, True), ("file:///b", True, True), ("file:///c", False, True),
    ]  # fmt: skip
    assert read_settings({}) is None
    assert read_settings({"PALLASC_REMOTE": ""}) is None


@pytest.mark.parametrize(
    ("environ", "remote", "message"),
    [
        ({"PALLASC_REMOTE": f"https://me:{SECRET}@"}, "", "PALLASC_REMOTE: the address"),
        ({"PALLASC_REMOTE": "s3://b1", "PALLASC_REMOTE_WRITE": "maybe"}, "", "is 'maybe'"),
        ({}, "bazel+http://host", "begins with bazel+http:// instead of"),
    ],
)
def test_a_wrong_setting_is_named(environ: dict[str, str], remote: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_settings(environ, BuildSettings(remote))
    assert message in str(caught.value)
    assert SECRET not in str(caught.value)
