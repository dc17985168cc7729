"""Workers that are not honest, or not there: real ones, which answer without compiling."""

import resource
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from behaves import GOOD
from clusters import PROGRAMS, Cluster, cluster, own_port, wait_for

from pallasc.compiler.workers import cluster as clients
from pallasc.compiler.workers import cluster_worker
from pallasc.compiler.workers.cluster import ClusterPool, read_reply
from pallasc.compiler.workers.cluster_worker import BuildPlugin, SentSources
from pallasc.compiler.workers.messages import Failed, Reply, Task, Warm
from pallasc.errors import PallascError, ToolError

FALSE = ("is too large", "swells when it is parsed", "is of another type", "is an error",
         "is a refusal")  # fmt: skip
NUMBER = 32


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a cluster of an honest worker and one that does what a file says."""
    folder = tmp_path_factory.mktemp("pair")
    preload = ("--preload", str(PROGRAMS / "behaves.py"))
    with cluster(folder, workers=0) as made:
        for name in ("honest", "false"):
            made.start_worker(name, *preload, BEHAVIOR=str(folder / f"{name}.behavior"))
        made.wait_for_workers()
        yield made


def opened(address: str) -> ClusterPool:
    pool = ClusterPool(address, 2)
    pool.warm(1)
    pool.describe(BuildPlugin({}, {}, {}, None, 600.0, None, SentSources()))
    return pool


def tasks(count: int) -> list[Task]:
    return [Task(number, ("sm_90a", "/specs", ()), Warm()) for number in range(count)]


def answers(address: str, count: int = NUMBER) -> list[Reply]:
    """Return the answers to a few tasks."""
    told: list[object] = []
    found: dict[int, Reply] = {}
    with opened(address) as pool:
        for kind, task, answer in pool.run(tasks(count)):
            if task is not None:
                told.append((kind, task.label))
            if task is not None and answer is not None:
                found[task.label] = answer
    assert sorted(found) == list(range(count))
    for number in range(count):
        before = told[: told.index(("done", number))]
        assert before.count(("started", number)) == told.count(("started", number)) <= 1
    return list(found.values())


def errors(found: list[Reply]) -> list[PallascError]:
    return [reply.error for reply in found if isinstance(reply, Failed)]


@pytest.mark.parametrize("behavior", FALSE)
def test_a_worker_whose_answer(behavior: str, pair: Cluster) -> None:
    """It costs no variant, gets few of them, and takes little memory here."""
    (pair.folder / "false.behavior").write_text(behavior)
    log = pair.folder / "false.behavior.log"
    log.unlink(missing_ok=True)
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = answers(pair.address)
    assert errors(found) == []
    assert 0 < len(log.read_text().splitlines()) < 2 * NUMBER
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 128 << 10


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (GOOD[:-5], "Expecting"),
        (b"[]", "Expected `object`"),
        (b"\xff", "can't decode"),
        (b'{"reply":' + b"[" * 400_000 + b"]" * 400_000 + b"}", "recursion depth"),
        (3, "not bytes"),
    ],
)
def test_bytes_that_are_no_outcome_are_rejected(data: object, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_reply(Warm(), data)


def test_variants_fail_with_the_reason_if_no_worker_is_honest(pair: Cluster) -> None:
    for name in ("honest", "false"):
        (pair.folder / f"{name}.behavior").write_text("is cut")
    found = errors(answers(pair.address))
    (pair.folder / "honest.behavior").unlink()
    assert len(found) == NUMBER
    for error in found:
        assert isinstance(error, ToolError)
        assert error.message.startswith(
            f"no worker of {pair.address} compiles it as this machine would"
        )


def test_a_variant_over_which_workers_die_fails_alone_and_a_lost_scheduler_ends_the_build(
    tmp_path: Path,
) -> None:
    once = {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0"}
    with cluster(tmp_path, once, workers=0) as own:
        preload = ("--preload", str(PROGRAMS / "behaves.py"))
        own.start_worker("mortal", *preload, BEHAVIOR=str(tmp_path / "behavior"))
        own.wait_for_workers()
        (tmp_path / "behavior").write_text("is death")
        (died,) = errors(answers(own.address, 1))
        with opened(own.address) as pool:
            events = pool.run(tasks(3))  # there is no worker any more
            assert next(events)[0] == "tick"
            own.kill_scheduler()
            with pytest.raises(ToolError, match=f"connection to {own.address} is lost"):
                list(events)
    assert died.kind == "died"
    assert died.message.startswith(f"workers of {own.address} died each time")


def test_variants_of_a_worker_that_is_silent_for_too_long_go_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "_GRACE_S", -1197.0)  # the limit of a variant is 600 s
    with cluster(tmp_path, workers=0) as own:
        preload = ("--preload", str(PROGRAMS / "behaves.py"))
        for name in ("honest", "silent"):
            own.start_worker(name, *preload, BEHAVIOR=str(tmp_path / f"{name}.behavior"))
        own.wait_for_workers()
        (tmp_path / "silent.behavior").write_text("never comes")
        assert errors(answers(own.address)) == []
        assert (tmp_path / "silent.behavior.log").exists()
        (tmp_path / "honest.behavior").write_text("never comes")
        assert all("not answered for 3 s" in e.message for e in errors(answers(own.address, 2)))


def test_a_scheduler_that_does_not_answer_is_one_error() -> None:
    with (
        own_port() as port,
        ClusterPool(f"dask://127.0.0.1:{port}", 1) as pool,
        pytest.raises(ToolError, match="there is no scheduler that answers") as caught,
    ):
        pool.warm(1)
    assert caught.value.hint is not None
    assert "dask scheduler" in caught.value.hint


def test_an_idle_worker_removes_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_worker, "_IDLE_S", 0.0)
    monkeypatch.setattr(BuildPlugin, "_differences", lambda plugin: ["the toolchain differs"])
    plugin = BuildPlugin({}, {}, {}, None, 600.0, None, SentSources())
    plugin.setup(SimpleNamespace(local_directory=tmp_path, state=SimpleNamespace(nthreads=1)))
    for number in range(2):
        assert b"the toolchain differs" in plugin.compile(("sm_90a", "", ()), Warm(), bool)
        wait_for(lambda: not any(tmp_path.iterdir()), f"no files after task {number}", 20)
