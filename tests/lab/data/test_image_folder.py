"""The user's own images: folders, lists and tables, well-formed and not."""

import unicodedata

import numpy as np
import pytest
from PIL import Image

from longtail import class_counts
from longtail.lab.data import DataError, ImageFolderOptions, long_tailed_subset, open_dataset
from longtail.lab.data.folds import held_out_part


def draw(path, shade=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (12, 10), (shade,) * 3).save(path)


def names_of(split, classes):
    return {split.path(place).name: classes[label] for place, label in enumerate(split.labels.tolist())}


@pytest.mark.parametrize("test", ["test", "val", "valid", "validation"])
def test_folders_of_training_and_test_images(tmp_path, test):
    for place, name in enumerate(("owl", "cat", "owl")):
        draw(tmp_path / "train" / name / f"{place}.png")
    draw(tmp_path / test / "owl" / "9.png")
    dataset = open_dataset(tmp_path)
    assert dataset.classes == ("cat", "owl")
    assert names_of(dataset.train, dataset.classes) == {"0.png": "owl", "1.png": "cat", "2.png": "owl"}
    assert names_of(dataset.test, dataset.classes) == {"9.png": "owl"}
    assert dataset.train[0][0].shape == (3, 10, 12)


def test_test_images_win_over_validation_images(tmp_path):
    for split in ("train", "test", "val"):
        draw(tmp_path / split / "a" / f"{split}.png")
    assert list(names_of(open_dataset(tmp_path).test, "a")) == ["test.png"]


def test_one_tree_is_split_class_by_class_and_always_alike(tmp_path):
    for name, count in (("a", 20), ("b", 5), ("c", 2)):
        for place in range(count):
            draw(tmp_path / name / f"{name}{place:02d}.png")
    dataset, again = open_dataset(tmp_path), open_dataset(tmp_path)
    assert dataset.counts.tolist() == [16, 4, 1]
    assert class_counts(dataset.test).tolist() == [4, 1, 1]
    assert names_of(dataset.test, dataset.classes) == names_of(again.test, again.classes)
    other = open_dataset(tmp_path, files=ImageFolderOptions(split_seed=1))
    assert names_of(dataset.test, dataset.classes) != names_of(other.test, other.classes)
    half = open_dataset(tmp_path, files=ImageFolderOptions(test_fraction=0.5))
    assert class_counts(half.test).tolist() == [10, 2, 1]
    everything = names_of(dataset.train, dataset.classes) | names_of(dataset.test, dataset.classes)
    assert len(everything) == 27


def test_classes_with_one_image_cannot_be_split(tmp_path):
    for path in ("a/1.png", "a/2.png", "lonely/3.png"):
        draw(tmp_path / path)
    with pytest.raises(DataError, match=r"1 of 2 classes, 'lonely', cannot be split .*: add images, remove .*, or "):
        open_dataset(tmp_path)
    for number in range(4):
        draw(tmp_path / f"{number}" / "1.png")
    with pytest.raises(DataError, match=r"5 of 6 classes, '0', '1', '2', …, cannot be split"):
        open_dataset(tmp_path)
    with pytest.raises(DataError, match="5 of 6 classes"):
        open_dataset(tmp_path, files=ImageFolderOptions(group_pattern="[0-9]"))


def test_a_class_with_one_image_is_enough_where_test_images_are_given(tmp_path):
    draw(tmp_path / "train" / "lonely" / "1.png")
    draw(tmp_path / "test" / "lonely" / "2.png")
    assert open_dataset(tmp_path).counts.tolist() == [1]


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 1.5, float("nan")])
def test_a_fraction_must_leave_something_on_both_sides(fraction):
    with pytest.raises(ValueError, match="test_fraction must be between 0 and 1"):
        held_out_part(np.zeros(5, dtype=int), fraction, name="test_fraction")


def test_nested_and_unicode_class_folders(tmp_path):
    composed, decomposed = (unicodedata.normalize(form, "Käuze") for form in ("NFC", "NFD"))
    draw(tmp_path / "train" / "Vögel" / composed / "日本.png")
    draw(tmp_path / "train" / "Vögel" / "Адлер" / "2 3.png")
    draw(tmp_path / "test" / "Vögel" / decomposed / "3.png")
    dataset = open_dataset(tmp_path)
    assert dataset.classes == (unicodedata.normalize("NFC", "Vögel/Käuze"), "Vögel/Адлер")
    assert dataset.test.labels.tolist() == [0]
    assert dataset.test[0][0].shape == (3, 10, 12)
    assert open_dataset(tmp_path, files=ImageFolderOptions(class_depth=1)).classes == ("Vögel",)


def test_numbered_class_folders_are_ordered_by_number(tmp_path):
    for name in ("10", "9", "2", "x"):
        draw(tmp_path / "train" / name / "1.png")
        draw(tmp_path / "test" / name / "1.png")
    assert open_dataset(tmp_path).classes == ("2", "9", "10", "x")


def test_a_long_tailed_subset_of_a_folder(tmp_path):
    for name in "abc":
        for place in range(10):
            draw(tmp_path / "train" / name / f"{place}.png")
        draw(tmp_path / "test" / name / "1.png")
    dataset = open_dataset(tmp_path)
    subset = long_tailed_subset(dataset.train.labels, 10)
    assert dataset.with_train(subset.indices).counts.tolist() == [10, 3, 1]


def images(folder, count=4):
    for place in range(count):
        draw(folder / f"{place}.png", place)


@pytest.mark.parametrize(
    ("train", "test"),
    [("train.txt", "test.txt"), ("Places_LT_train.txt", "Places_LT_val.txt"), ("train.TXT", "test.TXT")],
)
def test_lists_of_paths_and_labels(tmp_path, train, test):
    images(tmp_path / "some images")
    (tmp_path / train).write_text("some images/0.png 1\nsome images/1.png 0\n\nsome images/2.png 1\n")
    (tmp_path / test).write_text("some images/3.png 0\r\n")
    for data in (tmp_path, tmp_path / train):
        dataset = open_dataset(data)
        assert dataset.classes == ("0", "1")
        assert names_of(dataset.train, dataset.classes) == {"0.png": "1", "1.png": "0", "2.png": "1"}
        assert names_of(dataset.test, dataset.classes) == {"3.png": "0"}


def test_lists_apart_from_their_images(tmp_path):
    images(tmp_path / "images" / "train")
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "a.txt").write_text("train/0.png owl\ntrain/1.png cat\n")
    (tmp_path / "lists" / "b.txt").write_text(f"{tmp_path}/images/train/2.png cat\n")
    files = ImageFolderOptions(test_data=tmp_path / "lists" / "b.txt", image_root=tmp_path / "images")
    dataset = open_dataset(tmp_path / "lists" / "a.txt", files=files)
    assert names_of(dataset.train, dataset.classes) == {"0.png": "owl", "1.png": "cat"}
    assert names_of(dataset.test, dataset.classes) == {"2.png": "cat"}


def test_class_names_beside_a_list(tmp_path):
    images(tmp_path)
    (tmp_path / "train.txt").write_text("0.png 0\n1.png 1\n")
    (tmp_path / "test.txt").write_text("2.png 1\n")
    (tmp_path / "classes.txt").write_text("cat\nowl\n")
    dataset = open_dataset(tmp_path)
    assert names_of(dataset.test, dataset.classes) == {"2.png": "owl"}


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_table_with_a_header(tmp_path, delimiter):
    images(tmp_path)
    rows = ["ID,Label,Filename,split", 'x,"a, b",0.png,train', "y,owl,1.png,train", "z,owl,2.png,val", ""]
    text = "\n".join(rows) if delimiter == "," else "\n".join(rows).replace('"a, b"', "a b").replace(",", delimiter)
    (tmp_path / "birds.csv").write_text(text, encoding="utf-8-sig")
    dataset = open_dataset(tmp_path / "birds.csv")
    assert dataset.classes == ("a, b" if delimiter == "," else "a b", "owl")
    assert names_of(dataset.test, dataset.classes) == {"2.png": "owl"}


def test_a_table_without_splits_is_split(tmp_path):
    images(tmp_path)
    (tmp_path / "birds.csv").write_text("path,class\n0.png,5\n1.png,5\n2.png,12\n3.png,12\n")
    dataset = open_dataset(tmp_path / "birds.csv")
    assert dataset.classes == ("5", "12")
    assert class_counts(dataset.test).tolist() == [1, 1]


FOLDER_ERRORS = {
    "an empty class": ({"train/a/1.png", "test/a/1.png", "train/empty/"}, "train/empty holds no images"),
    "no images in a class": (
        {"train/a/1.png", "test/a/1.png", "train/b/x.txt"},
        "train/b holds no images, only 1 other",
    ),
    "a test class without training": ({"train/a/1.png", "test/b/2.png"}, "test: b/2.png is of class 'b', which is not"),
    "images beside class folders": ({"a/1.png", "a/2.png", "3.png"}, "3.png is not in a folder named like its class"),
    "nothing at all": ({"a/"}, "a holds no images"),
    "a single image": ({"a/1.png"}, "1 of 1 classes, 'a', cannot be split"),
}


@pytest.mark.parametrize("case", FOLDER_ERRORS)
def test_a_folder_that_cannot_be_used_is_named(tmp_path, case):
    paths, message = FOLDER_ERRORS[case]
    for path in paths:
        if path.endswith("/"):
            (tmp_path / path).mkdir(parents=True)
        elif path.endswith(".txt"):
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text("x")
        else:
            draw(tmp_path / path)
    with pytest.raises(DataError) as error:
        open_dataset(tmp_path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


LIST_ERRORS = {
    "no label": ("0.png\n", "train.txt, line 1: '0.png' is not a path and a label"),
    "a missing image": ("0.png 0\ngone.png 1\n", "train.txt names gone.png, which is not in"),
    "a path that climbs out": ("0.png 0\n../../secret.png 1\n", "train.txt, line 2: the path leads out of"),
    "an absolute path elsewhere": ("/etc/secret.png 1\n", "train.txt, line 1: the path leads out of"),
    "a negative label": ("0.png 0\n1.png -1\n", "1.png has label -1, but labels start at 0"),
    "a class without images": ("0.png 0\n1.png 2\n", "class '1' has no training images"),
    "nothing": ("\n", "train.txt lists no images"),
    "no text": (b"\xff\xfe\x00", "train.txt is not UTF-8 text"),
}


@pytest.mark.parametrize("case", LIST_ERRORS)
def test_a_list_that_cannot_be_used_names_file_and_line(tmp_path, case):
    content, message = LIST_ERRORS[case]
    images(tmp_path)
    (tmp_path / "train.txt").write_bytes(content if isinstance(content, bytes) else content.encode())
    (tmp_path / "test.txt").write_text("0.png 0\n")
    with pytest.raises(DataError) as error:
        open_dataset(tmp_path)
    assert message in str(error.value)


def test_a_label_outside_the_names_is_refused(tmp_path):
    images(tmp_path)
    (tmp_path / "train.txt").write_text("0.png 0\n1.png 1\n2.png 2\n")
    (tmp_path / "classes.txt").write_text("cat\nowl\n")
    with pytest.raises(DataError, match=r"train\.txt: 2\.png has label 2, but classes\.txt names 2 classes"):
        open_dataset(tmp_path)
    (tmp_path / "classes.txt").unlink()
    (tmp_path / "test.txt").write_text("3.png 7\n")
    with pytest.raises(DataError, match=r"test\.txt: 3\.png is of class '7', which is not among the 3"):
        open_dataset(tmp_path)


TABLE_ERRORS = {
    "other columns": ("a,b\n1,2\n", "has the columns a, b: one of path"),
    "a short row": ("path,label\n0.png\n", "line 2: 1 fields, but 2 columns"),
    "no label": ("path,label\n0.png,\n", "line 2: no label"),
    "no path": ("path,label\n,cat\n", "line 2: no path"),
    "a strange split": ("path,label,split\n0.png,cat,train\n1.png,cat,dev\n", "has the split 'dev'"),
    "no test": ("path,label,split\n0.png,cat,train\n", "no images of test"),
    "nothing": ("path,label\n", "lists no images"),
}


@pytest.mark.parametrize("case", TABLE_ERRORS)
def test_a_table_that_cannot_be_used_names_file_and_line(tmp_path, case):
    content, message = TABLE_ERRORS[case]
    images(tmp_path)
    (tmp_path / "birds.csv").write_text(content)
    with pytest.raises(DataError) as error:
        open_dataset(tmp_path / "birds.csv")
    assert message in str(error.value)
    assert "birds.csv" in str(error.value)


def test_two_training_lists_are_one_too_many(tmp_path):
    for name in ("a_train.txt", "b_train.txt"):
        (tmp_path / name).write_text("x 0")
    with pytest.raises(DataError, match=r"several lists of training images, a_train\.txt and b_train\.txt"):
        open_dataset(tmp_path)


def test_what_is_neither_a_name_nor_there_is_refused_with_the_nearest_name(tmp_path):
    with pytest.raises(ValueError, match="unknown data set 'cifar11': did you mean 'cifar10'"):
        open_dataset("cifar11", tmp_path)
    draw(tmp_path / "one.png")
    with pytest.raises(DataError, match=r"one\.png is neither a folder nor a list"):
        open_dataset(tmp_path / "one.png")
    with pytest.raises(DataError, match="folder/nowhere does not exist"):
        open_dataset("folder/nowhere")
    with pytest.raises(ValueError, match="unknown data set ''"):
        open_dataset("")


def test_unreadable_images_are_skipped_counted_and_named(tmp_path):
    for name in "ab":
        for place in range(4):
            draw(tmp_path / "train" / name / f"{place}.png")
        draw(tmp_path / "test" / name / "0.png")
    (tmp_path / "train" / "a" / "1.png").write_bytes(b"broken")
    (tmp_path / "test" / "b" / "9.jpg").write_bytes(b"")
    dataset = open_dataset(tmp_path, on_error="skip")
    assert (dataset.counts.tolist(), len(dataset.test)) == ([3, 4], 2)
    assert dataset.notes[0] == "skipped 1 of 8 train images"
    assert "train/a/1.png is not a readable image" in dataset.notes[1]
    assert dataset.notes[2] == "skipped 1 of 3 test images"
    assert len(open_dataset(tmp_path).train) == 8


def test_a_missing_file_of_a_list_is_skipped_too(tmp_path):
    images(tmp_path)
    (tmp_path / "train.txt").write_text("0.png 0\n1.png 1\ngone.png 1\n")
    (tmp_path / "test.txt").write_text("2.png 1\n")
    dataset = open_dataset(tmp_path, on_error="skip")
    assert len(dataset.train) == 2
    assert "gone.png" in dataset.notes[1]


def test_a_checked_file_is_decoded_again_only_if_it_changed(tmp_path, monkeypatch):
    from longtail.lab.data import file_cache

    for name in "ab":
        draw(tmp_path / "train" / name / "0.png")
        draw(tmp_path / "test" / name / "0.png")
    open_dataset(tmp_path, on_error="skip")
    checked = []
    check = file_cache.check_image
    monkeypatch.setattr(file_cache, "check_image", lambda path: checked.append(path.name) or check(path))
    open_dataset(tmp_path, on_error="skip")
    assert checked == []
    (tmp_path / "train" / "a" / "0.png").write_bytes(b"now it is broken")
    with pytest.raises(DataError, match=r"class 'a' has no training images that can be read: \S*train/a/0\.png is no"):
        open_dataset(tmp_path, on_error="skip")
    assert checked == ["0.png"]


def test_split_folders_are_known_whatever_their_case_and_unused_ones_are_noted(tmp_path):
    for path in ("Train/a/1.png", "TEST/a/2.png", "val/a/3.png", "car/4.png", ".old/5.png"):
        draw(tmp_path / path)
    (tmp_path / "papers").mkdir()
    dataset = open_dataset(tmp_path)
    assert dataset.classes == ("a",)
    assert dataset.notes == (f"{tmp_path}/val is not used", f"{tmp_path}/car is not used")


def test_class_folders_that_are_the_same_number_have_one_order(tmp_path):
    for name in ("1", "01", "001", "2"):
        for place in range(2):
            draw(tmp_path / name / f"{place}.png")
    assert open_dataset(tmp_path).classes == ("001", "01", "1", "2")


@pytest.mark.parametrize("depth", [0, -1])
def test_a_class_is_at_least_one_folder_deep(tmp_path, depth):
    with pytest.raises(ValueError, match="class_depth must be at least 1"):
        open_dataset(tmp_path, files=ImageFolderOptions(class_depth=depth))


def test_options_for_image_folder_are_refused_for_named_data_sets():
    with pytest.raises(DataError, match="digits has its own classes and test images"):
        open_dataset("digits", files=ImageFolderOptions(test_fraction=0.1))


def test_images_that_are_trained_and_tested_on_are_noted(tmp_path):
    images(tmp_path)
    (tmp_path / "train.txt").write_text("0.png 0\n1.png 1\n")
    (tmp_path / "test.txt").write_text("1.png 1\n2.png 0\n")
    assert open_dataset(tmp_path).notes == (
        f"1 image is in both the training and the test set, such as {tmp_path.resolve()}/1.png",
    )
    (tmp_path / "test.txt").write_text("./1.png 1\n.//2.png 0\n")
    assert len(open_dataset(tmp_path).notes) == 1


def test_an_image_that_is_named_twice_does_not_get_into_both_sets(tmp_path):
    images(tmp_path)
    (tmp_path / "all.txt").write_text("0.png a\n0.png a\n1.png b\n2.png b\n")
    with pytest.raises(DataError, match=r"all\.txt names an image twice"):
        open_dataset(tmp_path / "all.txt")
    (tmp_path / "all.txt").write_text("0.png a\n./0.png a\n1.png b\n2.png b\n")
    with pytest.raises(DataError, match=r"all\.txt names an image twice"):
        open_dataset(tmp_path / "all.txt")
    (tmp_path / "all.txt").write_text("0.png a\n1.png a\n0.png b\n2.png b\n")
    with pytest.raises(DataError, match=r"all\.txt names 0\.png twice, with the class 'a' and 'b'"):
        open_dataset(tmp_path / "all.txt")


def test_files_that_are_no_images_are_noted(tmp_path):
    for path in ("a/1.png", "a/2.jfif.png", "a/3.png"):
        draw(tmp_path / path)
    (tmp_path / "a" / "4.heic").touch()
    assert open_dataset(tmp_path).notes == ("left out, not a known image format: 1 files, such as a/4.heic",)


@pytest.mark.parametrize("label", ["5000000000", "1000000", "9" * 5000])
def test_a_huge_label_is_refused_at_once(tmp_path, label):
    images(tmp_path)
    (tmp_path / "train.txt").write_text(f"0.png 0\n1.png {label}\n")
    with pytest.raises(DataError, match=r"train\.txt has the label \d{1,40}: 1,000,000 classes are the most"):
        open_dataset(tmp_path)


def test_dots_in_names_do_not_lead_out_and_neither_do_links_to_the_folder(tmp_path):
    draw(tmp_path / "real" / "..a.png")
    draw(tmp_path / "real" / "b..c.png")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real" / "train.txt").write_text(f"..a.png 0\n{tmp_path.resolve()}/real/b..c.png 0\n")
    (tmp_path / "real" / "test.txt").write_text("./..a.png 0\n")
    assert len(open_dataset(tmp_path / "link").train) == 2


def test_line_separators_within_a_label_do_not_end_a_line(tmp_path):
    images(tmp_path)
    (tmp_path / "birds.csv").write_text("path,label,split\n0.png,a\u2028b,train\n1.png,a\u2028b,test\n")
    assert open_dataset(tmp_path / "birds.csv").classes == ("a\u2028b",)
    (tmp_path / "birds.csv").write_text('path,label\n0.png,"' + "x" * 200_000)
    with pytest.raises(DataError, match=r"birds\.csv, line \d: field larger"):
        open_dataset(tmp_path / "birds.csv")


def test_class_folders_whose_names_are_no_text_can_be_saved(tmp_path):
    import os

    for place in range(3):
        draw(tmp_path / os.fsdecode(b"caf\xe9") / f"{place}.png")
    dataset = open_dataset(tmp_path)
    assert dataset.classes == ("caf\\xe9",)
    long_tailed_subset(dataset.train.labels, 1).save(tmp_path / "subset.json", "x", dataset.classes)


def test_an_error_that_may_pass_is_not_remembered(tmp_path, monkeypatch):
    from longtail.lab.data import file_cache

    for name in ("a/0.png", "a/1.png", "a/2.png"):
        draw(tmp_path / name)
    check = file_cache.check_image

    def denied(path):
        try:
            raise PermissionError(13, "Permission denied")
        except OSError:
            raise DataError(f"{path} is not a readable image: Permission denied")  # noqa: B904 - as the real one does

    monkeypatch.setattr(file_cache, "check_image", denied)
    with pytest.raises(DataError, match="Permission denied"):
        open_dataset(tmp_path, on_error="skip")
    monkeypatch.setattr(file_cache, "check_image", check)
    assert len(open_dataset(tmp_path, on_error="skip").train) == 2
