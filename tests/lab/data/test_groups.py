"""Groups: images of one animal, patient or camera are never in two splits or folds."""

import contextlib
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from PIL import Image

from longtail import class_counts
from longtail.lab.data import DataError, FoldOptions, ImageFolderOptions, fingerprint, open_dataset
from longtail.lab.data.folds import fold_of_groups, held_out_part, hold_out_validation

samples = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 11)), min_size=4, max_size=80)


def as_arrays(pairs):
    labels, groups = zip(*pairs, strict=True)
    return np.unique(labels, return_inverse=True)[1], np.array([f"g{group}" for group in groups], "S")


@settings(deadline=None, max_examples=60)
@given(samples, st.integers(2, 5), st.integers(0, 99))
def test_a_group_is_held_out_in_one_fold(pairs, folds, seed):
    labels, groups = as_arrays(pairs)
    assume(folds <= min(len(set(groups.tolist())), class_counts(labels).max()))
    fold = fold_of_groups(labels, groups, folds, seed)
    assert set(fold.tolist()) <= set(range(folds))
    assert all(len(set(fold[groups == group].tolist())) == 1 for group in groups)
    assert np.array_equal(fold, fold_of_groups(labels, groups, folds, seed))


def test_folds_of_groups_are_stratified():
    """Forty animals of two species, four to one: each fold has both, in about that proportion."""
    groups = np.repeat([f"g{number:02d}" for number in range(40)], 5).astype("S")
    labels = np.repeat([0, 0, 0, 0, 1] * 8, 5)
    fold = fold_of_groups(labels, groups, 4)
    assert [class_counts(labels[fold == number]).tolist() for number in range(4)] == [[40, 10]] * 4
    assert not np.array_equal(fold, fold_of_groups(labels, groups, 4, seed=1))


@settings(deadline=None, max_examples=60)
@given(samples, st.floats(0.01, 0.99), st.integers(0, 99))
def test_a_group_is_held_out_as_a_whole_and_never_all_of_a_class(pairs, fraction, seed):
    labels, groups = as_arrays(pairs)
    marked = held_out_part(labels, fraction, seed, groups)
    assert all(len(set(marked[groups == group].tolist())) == 1 for group in groups)
    assert set(labels[~marked].tolist()) == set(labels.tolist())


@pytest.mark.parametrize("fraction", [0.05, 0.1, 0.2, 0.25, 0.3, 0.5, 0.75])
def test_about_the_fraction_of_each_class_is_held_out(fraction):
    groups = np.repeat([f"g{number:03d}" for number in range(200)], 5).astype("S")
    labels = np.repeat(np.arange(200) % 2, 5)
    marked = held_out_part(labels, fraction, groups=groups)
    for label in (0, 1):
        assert marked[labels == label].mean() == pytest.approx(fraction, abs=0.02)


def test_a_group_of_half_of_the_images_is_trained_on():
    groups = np.array(["large"] * 50 + [f"g{number % 10}" for number in range(50)], "S")
    marked = held_out_part(np.arange(100) % 2, 0.1, groups=groups)
    assert 5 <= marked.sum() <= 15
    assert b"large" not in groups[marked]


def test_a_camera_of_many_classes_is_not_held_out_for_one_of_them():
    """Class 2 is seen by two cameras of the training images: to test on one of them takes too much of the others."""
    cameras = np.repeat([f"c{number}" for number in range(10)], 10)
    labels = np.tile(np.arange(10) % 2, 10)
    marked = held_out_part(labels, 0.2, groups=cameras.astype("S"))
    seen = [camera for camera in np.unique(cameras) if camera not in cameras[marked]][:2]
    for camera in seen:
        labels[np.flatnonzero(cameras == camera)[0]] = 2
    again = held_out_part(labels, 0.2, groups=cameras.astype("S"))
    assert again.sum() == marked.sum() == 20


WAYS = {
    "column": "list.csv",
    "named column": "list.csv",
    "third column": "list.txt",
    "tabs": "list.txt",
    "pattern over folders": "",
    "pattern over a list": "list.csv",
}


@pytest.mark.parametrize("way", WAYS)
@settings(deadline=None, max_examples=15)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), min_size=25, max_size=60),
    st.floats(0.05, 0.6),
    st.integers(0, 9),
)
def test_no_group_is_ever_in_two_parts_however_it_is_given(way, pairs, fraction, seed):
    """Test images, validation images and folds, of files that are opened as a user would."""
    labels = as_arrays(pairs)[0].tolist()
    images = [
        (f"c{label}/x{group}y{number}.png", label, f"x{group}y")
        for number, (label, (_, group)) in enumerate(zip(labels, pairs, strict=True))
    ]
    named = "label,animal" if way == "named column" else "label,group" if way == "column" else "label,other"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, WAYS[way])
        for path, _, _ in images:
            Path(folder, path).parent.mkdir(exist_ok=True)
            Path(folder, path).touch()
        separator = {"third column": " ", "tabs": "\t"}.get(way, ",")
        lines = [] if source.suffix == ".txt" else [f"path,{named}"]
        lines += [separator.join(map(str, row)) for row in images]
        if source.suffix:
            source.write_text("\n".join(lines))
        pattern = "x[0-9]+y" if way.startswith("pattern") else None
        options = ImageFolderOptions(
            group_pattern=pattern,
            group_column="animal" if way == "named column" else None,
            test_fraction=fraction,
            split_seed=seed,
        )
        try:
            dataset = open_dataset(source, files=options)
            folds = [FoldOptions(folds=2, fold=fold, fold_seed=seed).choose(dataset) for fold in range(2)]
        except DataError:  # too few groups, or a class without images
            assume(False)

    def groups(part):
        return {part.path(index).stem.split("y")[0] for index in range(len(part))}

    assert not groups(dataset.train) & groups(dataset.test)
    assert not groups(folds[0].test) & groups(folds[1].test)
    for part in (dataset, *folds):
        with contextlib.suppress(DataError):  # no group can be spared
            part = hold_out_validation(part, fraction)
        parts = [groups(each) for each in (part.train, part.test, part.validation) if each is not None]
        assert sum(map(len, parts)) == len(set.union(*parts))


def draw(path, shade=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (shade,) * 3).save(path)


def draw_animals(folder, animals=6, photos=3):
    for name in ("cow", "ox"):
        for animal in range(animals):
            for photo in range(photos):
                draw(folder / name / f"{name}{animal}_{photo}.png")
    return folder


def groups_of(images):
    return {images.path(index).stem.split("_")[0] for index in range(len(images))}


PATTERN = ImageFolderOptions(group_pattern=r"(\w+)_\d")


def test_a_pattern_keeps_the_photographs_of_an_animal_in_one_split(tmp_path):
    draw_animals(tmp_path)
    dataset = open_dataset(tmp_path, files=PATTERN)
    train, test = groups_of(dataset.train), groups_of(dataset.test)
    assert train | test == {f"{name}{animal}" for name in ("cow", "ox") for animal in range(6)}
    assert not train & test
    assert {name[:2] for name in test} == {"co", "ox"}
    without = open_dataset(tmp_path)
    assert groups_of(without.train) & groups_of(without.test)


def test_validation_images_and_folds_keep_groups_together(tmp_path):
    dataset = open_dataset(draw_animals(tmp_path), files=PATTERN)
    for fold in range(3):
        chosen = hold_out_validation(FoldOptions(folds=3, fold=fold).choose(dataset), 0.25)
        parts = [groups_of(images) for images in (chosen.train, chosen.validation, chosen.test)]
        assert all(parts)
        assert sum(map(len, parts)) == len(set.union(*parts)) == len(groups_of(dataset.train))


def test_validation_images_are_of_every_class_that_can_spare_one():
    digits, subset = open_dataset("digits"), 0.1
    chosen = hold_out_validation(digits, subset)
    assert (class_counts(chosen.train) + class_counts(chosen.validation)).tolist() == digits.counts.tolist()
    assert class_counts(chosen.validation).tolist() == [round(0.1 * count) for count in digits.counts]
    assert chosen.test is digits.test


def test_a_class_of_one_group_is_trained_on_and_noted(tmp_path):
    draw_animals(tmp_path)
    for photo in range(5):
        draw(tmp_path / "yak" / f"yak_{photo}.png")
    dataset = open_dataset(tmp_path, files=PATTERN)
    assert dataset.counts[2] == 5
    assert "1 of 3 classes have no test images, such as 'yak'" in dataset.notes
    validated = hold_out_validation(dataset, 0.2)
    assert validated.counts[2] == 5
    assert "1 of 3 classes have no validation images, such as 'yak'" in validated.notes
    without = [FoldOptions(folds=3, fold=fold).choose(dataset) for fold in range(3)]
    assert sorted(chosen.counts[2] for chosen in without) == [0, 5, 5]
    (absent,) = (chosen for chosen in without if not chosen.counts[2])
    assert absent.notes[-1].startswith("1 of 3 classes have no training images in fold")
    assert "'yak'" in absent.notes[-1]


TABLE = "file,species,animal\n" + "".join(
    f"{name}/{name}{animal}_{photo}.png,{name},{name}{animal}\n"
    for name in ("cow", "ox")
    for animal in range(6)
    for photo in range(3)
)


def test_columns_of_a_table_can_be_named(tmp_path):
    draw_animals(tmp_path)
    (tmp_path / "list.csv").write_text(TABLE.replace("file,species,animal", "Photo,Kind,Animal"))
    options = ImageFolderOptions(path_column="photo", label_column="Kind", group_column="animal")
    dataset = open_dataset(tmp_path / "list.csv", files=options)
    assert dataset.classes == ("cow", "ox")
    assert not groups_of(dataset.train) & groups_of(dataset.test)
    same = open_dataset(tmp_path, files=PATTERN)
    assert groups_of(same.test) == groups_of(dataset.test)


@pytest.mark.parametrize("form", ["table", "numbers", "tabs"])
def test_a_list_has_a_column_of_groups(tmp_path, form):
    draw_animals(tmp_path)
    rows = [line.split(",") for line in TABLE.splitlines()[1:]]
    numbers = {"cow": "0", "ox": "1"}
    texts = {
        "table": TABLE.replace("animal", "group", 1),
        "numbers": "\n".join(f"{path} {numbers[name]} {animal}" for path, name, animal in rows),
        "tabs": "\n".join(f"{path}\t{name}\t{animal}" for path, name, animal in rows),
    }
    file = tmp_path / ("list.csv" if form == "table" else "list.txt")
    file.write_text(texts[form])
    dataset = open_dataset(file)
    assert len(dataset.classes) == 2
    assert set(dataset.train.groups.tolist()) == {name.encode() for name in groups_of(dataset.train)}
    assert not groups_of(dataset.train) & groups_of(dataset.test)


def test_a_path_with_spaces_has_no_group(tmp_path):
    for number in range(4):
        draw(tmp_path / f"my photo {number}.png")
    (tmp_path / "list.txt").write_text("".join(f"my photo {number}.png {number % 2}\n" for number in range(4)))
    dataset = open_dataset(tmp_path / "list.txt")
    assert dataset.train.groups is None
    assert len(dataset.classes) == 2


def test_groups_are_in_the_fingerprint_and_images_without_them_keep_theirs(tmp_path):
    draw_animals(tmp_path)
    for split in ("train", "test"):
        draw_animals(tmp_path / "cut" / split)
        for path in (tmp_path / "cut" / split).rglob("*.png"):
            if (path.stem[-3:] in ("0_0", "0_1")) != (split == "test"):
                path.unlink()
    plain = fingerprint(open_dataset(tmp_path / "cut"))
    kinds = [ImageFolderOptions(group_pattern=pattern) for pattern in (r"\d_\d", r".*")]
    assert len({plain, *(fingerprint(open_dataset(tmp_path / "cut", files=files)) for files in kinds)}) == 3


@pytest.mark.parametrize("form", ["folders", "column"])
def test_a_group_in_both_splits_is_one_line(tmp_path, form):
    if form == "folders":
        for split, photo in (("train", 0), ("train", 1), ("test", 2)):
            for animal in ("cow1", "cow2" if split == "train" else "cow3"):
                draw(tmp_path / split / "cow" / f"{animal}_{photo}.png")
        options, source = PATTERN, tmp_path
    else:
        draw_animals(tmp_path, animals=2)
        lines = TABLE.replace("animal", "group", 1).splitlines()
        rows = [lines[0] + ",split", *(f"{line},{'test' if '_2' in line else 'train'}" for line in lines[1:])]
        source = tmp_path / "list.csv"
        source.write_text("\n".join(row for row in rows if "file" in row or row.split(",")[2][-1] in "01"))
        options = ImageFolderOptions()
    with pytest.raises(
        DataError, match=r"(1 group is|[2-9] groups are) in both the training and the test images, such as 'cow"
    ) as error:
        open_dataset(source, files=options)
    assert "\n" not in str(error.value)


def test_test_images_without_groups_are_noted(tmp_path):
    draw_animals(tmp_path)
    rows = TABLE.replace("animal", "group", 1).splitlines()
    (tmp_path / "train.csv").write_text("\n".join(rows[:-3]))
    (tmp_path / "test.csv").write_text("file,species\n" + "\n".join(row.rpartition(",")[0] for row in rows[-3:]))
    (note,) = open_dataset(tmp_path / "train.csv").notes
    assert note == f"{tmp_path / 'test.csv'} has no groups: a group may be in both the training and the test set"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group_pattern": "("}, r"^data.files.group_pattern '\(' is not a regular expression: missing \)"),
        (
            {"group_pattern": "sheep"},
            "^data.files.group_pattern 'sheep' does not match cow/cow0_0.png: every image needs a group",
        ),
        ({"group_pattern": "x*"}, r"^data.files.group_pattern 'x\*' does not match cow/cow0_0.png"),
        ({"group_pattern": "n"}, "has no group to test on: each of the 1 has all images of a class"),
        ({"group_pattern": "^(cow|ox)"}, "has no group to test on: each of the 2 has all images of a class"),
        ({"group_column": "animal"}, "^data.files.group_column requires a CSV file: .* has no columns"),
        ({"path_column": "file", "group_pattern": r"\w"}, "^data.files.path_column requires a CSV file"),
        (
            {"group_column": "animal", "group_pattern": r"\w"},
            "^data.files.group_column and data.files.group_pattern exclude each other",
        ),
    ],
)
def test_bad_groups_are_one_line(tmp_path, options, message):
    draw_animals(tmp_path)
    with pytest.raises(DataError, match=message) as error:
        open_dataset(tmp_path, files=ImageFolderOptions(**options))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "text", "options", "message"),
    [
        ("a.csv", TABLE, {"label_column": "kind"}, "a.csv has no column 'kind': it has file, species, animal"),
        ("a.csv", TABLE + "cow/x.png,cow,\n", {"group_column": "animal"}, "a.csv, line 38: no group"),
        ("a.txt", "cow/1.png 0 a\ncow/2.png 0\n", {}, "a.txt, line 2: no group"),
        ("a.txt", "cow/1.png 0\ncow/2.png 0 a\n", {}, "a.txt, line 2: a group, but the lines before it have none"),
        (
            "a.csv",
            TABLE.replace("species", "kind"),
            {},
            "name them by data.files.path_column and data.files.label_column$",
        ),
        ("a.csv", TABLE.replace("animal", "species"), {}, "a.csv has two columns 'species'"),
        ("a.csv", "", {}, "a.csv has no header"),
        (
            "a.csv",
            TABLE + "cow/cow0_0.png,cow,cow1\n",
            {"group_column": "animal"},
            "a.csv names cow/cow0_0.png twice, with the group 'cow0' and 'cow1'",
        ),
    ],
)
def test_bad_columns_name_file_and_line(tmp_path, name, text, options, message):
    draw_animals(tmp_path)
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message):
        open_dataset(tmp_path / name, files=ImageFolderOptions(**options))


def test_too_few_groups_for_the_folds_are_refused(tmp_path):
    dataset = open_dataset(draw_animals(tmp_path, animals=2), files=PATTERN)
    assert class_counts(dataset.test).tolist() == [3, 3]  # one of two animals
    with pytest.raises(DataError, match="folds must be from 2 to the 2 groups of the training images, got 3"):
        FoldOptions(folds=3, fold=0).choose(dataset)


def test_an_empty_validation_split_is_refused(tmp_path):
    for name in ("cow", "ox"):
        draw(tmp_path / "train" / name / "1.png")
        draw(tmp_path / "test" / name / "2.png")
    with pytest.raises(DataError, match=r"validation_fraction 0.1 holds out no training image of .*: every class has"):
        hold_out_validation(open_dataset(tmp_path), 0.1)
    with pytest.raises(DataError, match="each group has the only images of a class"):
        hold_out_validation(open_dataset(tmp_path, files=ImageFolderOptions(group_pattern=r"\d")), 0.1)
