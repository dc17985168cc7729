"""Specs of another revision: nothing of the user's changes, and what is missing is told."""

from pathlib import Path

import pytest
from commands import output_of

from pallasc.analysis.sides import checked_out, split_revision, taken_from_elsewhere
from pallasc.errors import SpecError
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import parse_yaml

SPEC = "schema: 1\ntargets: [sm_90a]\nkernels:\n  - {name: k, entry: ENTRY, args: {x: 'f32[8]'}}\n"


def git(folder: Path, *arguments: str) -> str:
    names = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    return output_of(["git", "-C", str(folder), *names, *arguments])


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a repository with a committed spec, changed since, and a file that is staged."""
    folder = tmp_path / "clone"
    (folder / "specs").mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    (folder / "specs" / "k.yaml").write_text("old")
    (folder / "left.txt").write_text("left")
    (folder / ".gitattributes").write_text("left.txt export-ignore\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "one")
    (folder / "specs" / "k.yaml").write_text("new")
    (folder / "staged.txt").write_text("staged")
    git(folder, "add", "staged.txt")
    return folder


def test_the_files_are_those_of_the_revision_and_the_tree_stays_as_it_is(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(clone / "specs")
    before = git(clone, "status", "--porcelain"), (clone / ".git" / "index").read_bytes()
    with checked_out("k.yaml", "main") as found:
        path = Path(found.path)
        assert path.read_text() == "old"
        assert (path.parents[1] / "left.txt").read_text() == "left"
        assert not (path.parents[1] / "staged.txt").exists()
        assert found.commit == git(clone, "rev-parse", "main").strip()
    assert not path.exists()
    assert (git(clone, "status", "--porcelain"), (clone / ".git" / "index").read_bytes()) == before


@pytest.mark.parametrize(
    ("path", "revision", "message"),
    [
        ("specs/k.yaml", "gone", "has no revision gone."),
        ("specs/k.yaml", "--all", "has no revision --all."),
        ("specs/other.yaml", "main", "specs/other.yaml is not in main ("),
        ("staged.txt", "main", "staged.txt is not in main ("),
        ("../outside.yaml", "main", "is in no git repository that git can read."),
    ],
)
def test_what_is_not_there_is_refused(
    clone: Path, monkeypatch: pytest.MonkeyPatch, path: str, revision: str, message: str
) -> None:
    monkeypatch.chdir(clone)
    with pytest.raises(SpecError) as caught, checked_out(path, revision):
        pass
    assert message in str(caught.value)
    assert caught.value.hint or "outside" in path


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("k.yaml", ("k.yaml", "")),
        ("k.yaml@main", ("k.yaml", "main")),
        ("specs/@HEAD~2", ("specs/", "HEAD~2")),
        ("a@b.yaml@v1", ("a@b.yaml", "v1")),
        ("odd@name.yaml", ("odd@name.yaml", "")),
        ("@main", ("@main", "")),
    ],
)
def test_a_path_that_exists_has_no_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, parts: tuple[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("odd@name.yaml").touch()
    assert split_revision(text) == parts


def test_code_that_is_imported_from_the_working_tree_is_told(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (clone / "src" / "installed_here").mkdir(parents=True)
    (clone / "src" / "installed_here" / "__init__.py").write_text("def f(x): ...\n")
    monkeypatch.chdir(clone)
    monkeypatch.syspath_prepend(str(clone / "src"))
    with checked_out("specs", "main") as found:
        for entry, told in (("installed_here:f", 1), ("json:loads", 0)):
            text = SPEC.replace("ENTRY", entry)
            variants = expand(parse_yaml(text, file="k.yaml", base_dir=Path(found.path)))
            notes = taken_from_elsewhere(variants, found)
            assert len(notes) == told, entry
            assert all(note.startswith("installed_here is installed from") for note in notes)
