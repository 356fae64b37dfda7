"""Listing folders: complete, sorted, through links."""

import os

import pytest

from longtail.lab.data import DataError
from longtail.lab.data.image_scan import list_images


@pytest.fixture
def tree(tmp_path):
    for path in ("b/2.JPG", "b/1.png", "a/deep/3.jpeg", "a/deep/notes.txt", "a/.hidden.jpg", ".cache/4.jpg"):
        (tmp_path / "root" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / path).touch()
    return tmp_path / "root"


def found(root):
    return {place: folder.images for place, folder in list_images(root).items()}


def test_images_are_found_in_nested_folders_and_sorted(tree):
    assert found(tree) == {"": [], "a": [], "a/deep": ["3.jpeg"], "b": ["1.png", "2.JPG"]}
    assert list_images(tree)["a/deep"].others == ["notes.txt"]


def test_names_that_are_not_text_are_listed(tree):
    (tree / "b" / os.fsdecode(b"caf\xe9.jpg")).touch()
    assert os.fsdecode(b"caf\xe9.jpg") in found(tree)["b"]


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
