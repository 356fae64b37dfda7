"""Listing folders: complete, cached, and never out of date."""

import os

import pytest

from longtail.lab.data import DataError, image_scan
from longtail.lab.data.image_scan import list_images


@pytest.fixture
def tree(tmp_path, monkeypatch):
    for path in ("b/2.JPG", "b/1.png", "a/deep/3.jpeg", "a/deep/notes.txt", "a/.hidden.jpg", ".cache/4.jpg"):
        (tmp_path / "root" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / path).touch()
    # As if nothing had changed for a while: the time that the system keeps cannot be set.
    monkeypatch.setattr(image_scan, "COARSE_CLOCK_NS", -1)
    return tmp_path / "root"


def found(root):
    return {place: folder.images for place, folder in list_images(root).items()}


def count_scans(monkeypatch):
    scanned = []
    scan = os.scandir
    monkeypatch.setattr(image_scan.os, "scandir", lambda path: scanned.append(str(path)) or scan(path))
    return scanned


def test_images_are_found_in_nested_folders_and_sorted(tree):
    assert found(tree) == {"": [], "a": [], "a/deep": ["3.jpeg"], "b": ["1.png", "2.JPG"]}
    assert list_images(tree)["a/deep"].others == ["notes.txt"]


def test_the_second_listing_reads_no_folder(tree, monkeypatch):
    first = list_images(tree)
    scanned = count_scans(monkeypatch)
    assert list_images(tree) == first
    assert scanned == []


@pytest.mark.parametrize(
    ("change", "folder"),
    [
        (lambda root: (root / "b" / "new.jpg").touch(), "b"),
        (lambda root: (root / "b" / "1.png").unlink(), "b"),
        (lambda root: (root / "b" / "1.png").rename(root / "b" / "9.png"), "b"),
        (lambda root: (root / "c").mkdir(), "c"),
        (lambda root: (root / "a" / "deep").rename(root / "a" / "deeper"), "a"),
    ],
)
def test_a_change_is_noticed_and_only_what_changed_is_read_again(tree, monkeypatch, change, folder):
    list_images(tree)
    change(tree)
    visible = [path for path in tree.rglob("*") if not any(part.startswith(".") for part in path.parts)]
    images = {str(path.relative_to(tree)) for path in visible if path.suffix.lower() in (".jpg", ".jpeg", ".png")}
    folders = sum(path.is_dir() for path in visible) + 1
    scanned = count_scans(monkeypatch)
    listed = found(tree)
    assert {f"{place}/{name}" for place, names in listed.items() for name in names} == images
    assert str(tree / folder) in scanned
    assert len(scanned) < len(listed) == folders


def test_a_folder_that_changed_just_before_it_was_listed_is_not_trusted(tree, monkeypatch):
    """Two changes within one tick of the clock leave the same time of change."""
    monkeypatch.setattr(image_scan, "COARSE_CLOCK_NS", 2_000_000_000)
    found(tree)
    scanned = count_scans(monkeypatch)
    found(tree)
    assert len(scanned) == 4


def test_a_change_is_noticed_though_somebody_set_the_time_back(tree):
    """As tar and rsync do."""
    before = (tree / "b").stat()
    found(tree)
    (tree / "b" / "new.jpg").touch()
    os.utime(tree / "b", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert "new.jpg" in found(tree)["b"]


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"version": 0, "content": {"x": 1}}'])
def test_a_damaged_cache_is_made_anew(tree, own_cache, damage):
    first = list_images(tree)
    (cache,) = own_cache.rglob("listings/*.json")
    cache.write_bytes(damage)
    assert list_images(tree) == first


def test_no_place_for_a_cache_is_no_problem(tree, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert found(tree)["b"] == ["1.png", "2.JPG"]


def test_names_that_are_not_text_survive_the_cache(tree):
    (tree / "b" / os.fsdecode(b"caf\xe9.jpg")).touch()
    first = found(tree)
    assert os.fsdecode(b"caf\xe9.jpg") in first["b"]
    assert found(tree) == first


def test_links_are_followed(tree, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "5.png").touch()
    (tree / "link").symlink_to(tmp_path / "elsewhere")
    (tree / "b" / "6.png").symlink_to(tmp_path / "elsewhere" / "5.png")
    listed = found(tree)
    assert listed["link"] == ["5.png"]
    assert "6.png" in listed["b"]


@pytest.mark.parametrize("target", [".", "..", "../../root", "../a/up"])
def test_a_loop_of_links_is_named(tree, target):
    (tree / "a" / "up").symlink_to(target)
    with pytest.raises(DataError, match=r"root/a/up.*(loop|Too many levels)"):
        list_images(tree)


def test_a_broken_link_is_listed_so_that_reading_it_names_it(tree):
    (tree / "b" / "7.png").symlink_to("gone.png")
    assert "7.png" in found(tree)["b"]


def test_a_folder_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(DataError, match=r"cannot read .*nothing: No such file"):
        list_images(tmp_path / "nothing")


def test_what_a_broken_link_leads_to_may_appear_later(tree, tmp_path):
    (tree / "link").symlink_to(tmp_path / "disk")
    assert "link" not in found(tree)
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "5.png").touch()
    assert found(tree)["link"] == ["5.png"]
