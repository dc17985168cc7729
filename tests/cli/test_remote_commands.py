"""`pallasc cache push`, `pull`, `stats --remote` and `prune --remote`."""

import errno
import json
import os
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from pallasc.cache.format import size
from pallasc.cache.remote.remote import push
from pallasc.cache.remote.settings import read_settings
from pallasc.cache.store import Store


def told(result: Any) -> Any:
    assert result.code == 0, result.err
    return json.loads(result.out)


def test_stores_are_brought_and_sent(
    machine: Any, make_machine: Any, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, remote = ("--store", machine.store), ("--remote", machine.url)
    lacking = told(run("cache", "push", machine.spec, *store, *remote, "--json"))
    assert (lacking["sent"], lacking["present"], lacking["absent"]) == (0, 0, 2)
    brought = run("cache", "pull", *store, *remote)
    assert re.match(
        r"fetched 2 variants, 0 already there: [\d,]{5,} bytes received, \d+ requests$", brought.out
    )
    again = told(run("cache", "pull", *store, *remote, "--json"))
    assert (again["brought"], again["present"], again["absent"]) == (0, 2, 0)
    assert (again["url"], again["refusals"], again["bytes_written"]) == (machine.url, 0, 0)
    assert run("build", machine.spec, *store, "--frozen").code == 0

    second = f"file://{machine.folder}/second"
    monkeypatch.setenv("PALLASC_REMOTE", second)
    nothing = run("cache", "pull", *store)
    assert nothing.out == "the remote store has no variants to fetch: 0 bytes received, 1 request\n"
    sent = run("cache", "push", machine.spec, *store, "-k", "dtype=f32")
    assert re.match(r"sent 1 variant, 0 already there: [\d,]{4,} bytes sent, \d", sent.out)
    rest = told(run("cache", "push", machine.spec, *store, "--json"))
    assert (rest["sent"], rest["present"], rest["absent"], rest["bound"]) == (1, 1, 0, {})
    other = make_machine(machine.folder / "third", machine.remote)
    assert told(run("cache", "pull", "--store", other.store, "--json"))["brought"] == 2


def test_figures_of_a_remote_and_what_is_wrong_with_it(
    machine: Any, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stats = ("cache", "stats", "--store", machine.store, "--remote")
    data = told(run(*stats, machine.url, "--json"))
    (figures,) = data["namespaces"]
    assert (data["url"], data["faults"], figures["here"]) == (machine.url, None, True)
    assert (figures["variants"], figures["packs"]) == (2, 1)
    monkeypatch.setenv("PALLASC_REMOTE", machine.url)
    text = run(*stats, "--all", "--verify")
    url, head, row, verified = text.out.splitlines()
    assert (text.code, url, text.err) == (0, machine.url, "")
    assert head.split() == ["NAMESPACE", "VARIANTS", "PACKS", "SIZE", "USED"]
    assert row.split()[1:] == ["2", "1", *size(figures["bytes"]).split(), "today"]
    assert verified == "verified 1 pack: 0 faults"
    (pack,) = machine.remote.rglob("packs/*")
    pack.write_bytes(pack.read_bytes()[:-100])
    wrong = run(*stats, machine.url, "--verify")
    assert wrong.code == 5
    assert wrong.err.startswith("warning: ")
    assert pack.name in wrong.err
    assert wrong.out.endswith("\nverified 1 pack: 1 fault\n")
    refused = run("cache", "stats", "--verify")
    assert (refused.code, "--verify needs --remote." in refused.err) == (2, True)


def test_a_remote_is_pruned_only_where_it_is_named(
    machine: Any, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PALLASC_REMOTE", machine.url)
    packs = list(machine.remote.rglob("packs/*"))
    prune = ("cache", "prune", "--store", machine.store)
    run(*prune, "--all")
    refused = run(*prune, "--remote", machine.url)
    assert (refused.code, refused.err.partition("\n")[0]) == (
        2,
        "error: --remote needs --size or --age.",
    )
    young = told(run(*prune, "--remote", machine.url, "--age", "1d", "--json"))
    assert (young["packs"], young["kept_packs"], young["dry_run"]) == (0, 1, False)
    dry = run(*prune, "--remote", machine.url, "--size", "1B", "--dry-run")
    assert dry.out.splitlines()[0] == f"would remove 1 pack: {packs[0].stat().st_size:,} bytes"
    assert dry.out.splitlines()[1] == "kept 0 packs: 0 bytes"
    assert packs[0].exists()
    assert run(*prune, "--remote", "--size", "1B").out.startswith("removed 1 pack: ")
    assert not packs[0].exists()
    found = told(run("cache", "stats", "--remote", "--store", machine.store, "--json"))
    assert [each["variants"] for each in found["namespaces"]] == [0]


def test_a_pull_that_stores_nothing_is_an_error(
    machine: Any, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull = ("cache", "pull", "--remote", machine.url, "--store")

    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        full = run(*pull, machine.store)
    assert (full.code, full.out) == (4, "")
    reason = f"the store {machine.store} cannot be written: No space left on device."
    assert f"error: {reason}\n  Name another store with" in full.err
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))  # for the secret of the store
    monkeypatch.setenv("PALLASC_REQUIRE_SIGNED_REMOTE", "1")
    unsigned = run(*pull, machine.store)
    assert (unsigned.code, "no trusted key signed it" in unsigned.err) == (5, True)
    monkeypatch.delenv("PALLASC_REQUIRE_SIGNED_REMOTE")
    (pack,) = machine.remote.rglob("packs/*")
    pack.write_bytes(pack.read_bytes()[:-100])
    damaged = run(*pull, machine.store)
    assert (damaged.code, "refused: pack" in damaged.err) == (5, True)
    pack.unlink()
    missing = run(*pull, machine.store)
    assert (missing.code, "there is no such file" in missing.err) == (5, True)
    assert missing.out.startswith("fetched 0 variants, 0 already there, 2 could not be fetched: ")


def test_a_remote_that_is_not_there_is_an_error(machine: Any, run: Any) -> None:
    store = ("--store", machine.store)
    assert run("cache", "pull", *store, "--remote", machine.url).code == 0
    for command in (("push", machine.spec, *store), ("pull", *store), ("stats", *store)):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))  # nobody listens
            url = f"http://me:hush@127.0.0.1:{taken.getsockname()[1]}/cache"
            result = run("cache", *command, "--remote", url)
        assert (result.code, result.out) == (4, "")
        assert result.err.startswith("error: ")
        assert "hush" not in result.err
    missing = run("cache", "pull", *store)
    assert missing.code == 2
    assert missing.err.startswith(
        "error: no remote store is configured.\n  Set it with --remote URL"
    )


def test_what_depends_on_the_machine_is_named(machine: Any, run: Any, tmp_path: Path) -> None:
    """As a store that another build has filled may have it."""
    assert run("cache", "pull", "--store", machine.store, "--remote", machine.url).code == 0
    bound = machine.spec.parent / "bound.yaml"
    bound.write_text(
        machine.spec.read_text().partition("matrix")[0].replace("helper.py", "kernels.py")
        .replace("name: add", "name: there").replace(":add", ":there")
        .replace("{dtype}[{m}, 4096]", "f32[1024, 4096]")
    )  # fmt: skip
    built = run("build", bound, "--store", machine.store, "--jobs", "1")
    assert (built.code, built.err.splitlines()[-1].endswith("1 lowered")) == (0, True), built.err
    remote = ("--remote", f"file://{tmp_path}/second")
    sent = run("cache", "push", bound, "--store", machine.store, *remote)
    assert sent.out.startswith("sent 0 variants, 0 already there, 1 depend on this machine: ")
    assert sent.err == (
        "warning: there@h100-sxm is not sent: it tests for /data/tiles.json, outside the folder "
        "of its spec\n"
    )
    # Who sends it all the same wants other machines to look there.
    hostile = Store(machine.store)
    keys = [
        name
        for name in hostile.names("man")
        if (manifest := hostile.get_manifest(name)) and "tiles.json" in str(manifest.opened)
    ]
    settings = read_settings({}, url=remote[1], write=True)
    assert settings is not None
    (namespace,) = {p.name for p in (machine.remote / "pallasc/v4").iterdir()}
    push(settings, hostile, {namespace: keys})
    other = ("--store", tmp_path / "third", *remote)
    refused = run("cache", "pull", *other, "--json")
    pulled = json.loads(refused.out)
    assert refused.code == 5
    assert (pulled["brought"], pulled["absent"], pulled["refusals"]) == (0, len(keys), len(keys))
    assert "tests for /data/tiles.json" in pulled["refused"][0]
    looked = told(run("build", bound, *other, "--dry-run", "--json"))
    assert (looked["totals"]["hit"], looked["remote"]["refusals"]) == (0, 1)
