import itertools
import shutil

import pytest

from longtail.lab.data.dataset import IMAGENET_MEAN, IMAGENET_STD
from longtail.lab.data.errors import DataError
from longtail.lab.data.imagenet import open_imagenet
from tests.lab.data.trees import (
    INNER_ID,
    VAL_WNIDS,
    WNIDS,
    labels_by_grey,
    write_devkit,
    write_flat_val,
    write_jpeg,
    write_kaggle_tables,
    write_train,
    write_val_folders,
)

NAMES = ("tench", "crane (n02012849)", "crane (n03126707)", "maillot")
TRUTH = "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt"
META = "ILSVRC2012_devkit_t12/data/meta.mat"


def write_class_folders(root):
    write_train(root)
    write_val_folders(root)


def write_with_devkit(root):
    write_train(root)
    write_flat_val(root)
    write_devkit(root)


def write_kaggle(root):
    write_train(root / "Data" / "CLS-LOC")
    write_flat_val(root / "Data" / "CLS-LOC")
    write_kaggle_tables(root)


def write_kaggle_zip(root):
    write_kaggle(root / "ILSVRC")
    for table in (root / "ILSVRC").glob("LOC_*"):
        table.rename(root / table.name)


WRITERS = [write_class_folders, write_with_devkit, write_kaggle, write_kaggle_zip]


@pytest.fixture
def class_folders(tmp_path):
    write_class_folders(tmp_path)
    return tmp_path


@pytest.fixture
def with_devkit(tmp_path):
    write_with_devkit(tmp_path)
    return tmp_path


@pytest.fixture
def kaggle(tmp_path):
    write_kaggle(tmp_path)
    return tmp_path


def refusal(folder):
    """The message of the error, which is one line."""
    with pytest.raises(DataError) as caught:
        open_imagenet(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("writer", "subfolder"),
    [
        *itertools.product(WRITERS, ["", "imagenet", "ILSVRC2012"]),
        *itertools.product([write_class_folders, write_with_devkit, write_kaggle], ["ILSVRC"]),
    ],
)
def test_every_layout_gives_each_image_its_own_label(tmp_path, writer, subfolder):
    writer(tmp_path / subfolder)
    dataset = open_imagenet(tmp_path)
    assert dataset.counts.tolist() == [1, 2, 3, 1]
    assert len(dataset.test) == len(VAL_WNIDS)
    for images in (dataset.train, dataset.test):
        assert labels_by_grey(images) == images.labels.tolist()
        assert images.paths.tolist() == sorted(images.paths.tolist())


@pytest.mark.parametrize("writer", WRITERS)
def test_the_folder_of_the_data_set_itself_may_be_given_from_within(tmp_path, writer, monkeypatch):
    writer(tmp_path / "ILSVRC")
    monkeypatch.chdir(tmp_path / "ILSVRC")
    dataset = open_imagenet(tmp_path.relative_to(tmp_path))
    assert labels_by_grey(dataset.test) == dataset.test.labels.tolist()


def test_a_table_of_kaggle_with_an_endless_field_is_named(kaggle):
    (kaggle / "LOC_val_solution.csv").write_text(f"ImageId,PredictionString\n{'x' * 200_000},n01440764\n")
    with pytest.raises(DataError, match=r"LOC_val_solution\.csv cannot be read: field larger than field limit"):
        open_imagenet(kaggle)


def test_kaggles_tables_are_found_beside_the_given_folder(tmp_path, monkeypatch):
    write_kaggle_zip(tmp_path)
    monkeypatch.chdir(tmp_path / "ILSVRC")
    assert open_imagenet(tmp_path.relative_to(tmp_path)).classes == NAMES


def test_a_folder_named_imagenet_is_preferred_to_the_data_folder(class_folders):
    write_class_folders(class_folders / "imagenet")
    assert open_imagenet(class_folders).train.root == class_folders / "imagenet"


@pytest.mark.parametrize("writer", WRITERS[1:])
def test_classes_are_named_by_the_first_word_of_the_synset_and_are_distinct(tmp_path, writer):
    writer(tmp_path)
    assert open_imagenet(tmp_path).classes == NAMES


def test_without_a_table_of_names_the_ids_are_the_names(class_folders):
    assert open_imagenet(class_folders).classes == tuple(WNIDS)


def test_class_folders_take_their_names_from_a_development_kit_beside_them(class_folders):
    write_devkit(class_folders)
    assert open_imagenet(class_folders).classes == NAMES


def test_a_class_that_the_table_does_not_name_keeps_its_id(kaggle):
    mapping = kaggle / "LOC_synset_mapping.txt"
    mapping.write_text("".join(mapping.read_text().splitlines(keepends=True)[1:]))
    assert open_imagenet(kaggle).classes == ("n01440764", *NAMES[1:])


def test_it_tells_its_name_and_how_to_normalise_pixels(class_folders):
    dataset = open_imagenet(class_folders)
    assert (dataset.name, dataset.mean, dataset.std) == ("imagenet", IMAGENET_MEAN, IMAGENET_STD)


@pytest.mark.parametrize("ending", [".jpg", ".JPG", ".jpeg", ".Jpeg"])
def test_every_spelling_of_jpeg_is_an_image(tmp_path, ending):
    write_with_devkit(tmp_path)
    for image in [*tmp_path.rglob("*.JPEG")]:
        image.rename(image.with_suffix(ending))
    dataset = open_imagenet(tmp_path)
    assert (len(dataset.train), len(dataset.test)) == (7, 5)
    assert labels_by_grey(dataset.test) == dataset.test.labels.tolist()


@pytest.mark.parametrize("writer", WRITERS[:2])
def test_hidden_files_and_what_is_no_image_are_ignored(tmp_path, writer):
    writer(tmp_path)
    write_jpeg(tmp_path / "train" / WNIDS[0] / "._n01440764_9.JPEG", 0)
    write_jpeg(tmp_path / "train" / ".cache" / "x.JPEG", 0)
    write_jpeg(tmp_path / "val" / "._ILSVRC2012_val_00000001.JPEG", 0)
    (tmp_path / "val" / ".DS_Store").touch()
    (tmp_path / "train" / WNIDS[0] / "notes.txt").touch()
    (tmp_path / "train" / "n01440764.tar").touch()
    dataset = open_imagenet(tmp_path)
    assert dataset.counts.tolist() == [1, 2, 3, 1]
    assert len(dataset.test) == 5


@pytest.mark.parametrize("writer", WRITERS[1:3])
def test_flat_images_are_joined_by_their_ids_and_not_by_position(tmp_path, writer):
    """There are as many images as annotations: a join by position would pass, with every label shifted."""
    writer(tmp_path)
    image = next(tmp_path.rglob("ILSVRC2012_val_00000001.JPEG"))
    image.rename(image.with_name("ILSVRC2012_val_00000006.JPEG"))
    assert "ILSVRC2012_val_00000006.JPEG has no annotation in" in refusal(tmp_path)


def test_a_folder_without_imagenet_is_refused(tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        message = refusal(folder)
        assert message.startswith(f"no ImageNet in {folder} or its folders imagenet, ILSVRC2012 and ILSVRC")
        assert "looked for train/ and Data/CLS-LOC/train/; it is only available" in message


def test_training_images_without_class_folders_are_refused(class_folders):
    shutil.rmtree(class_folders / "train")
    write_jpeg(class_folders / "train" / "x.JPEG", 0)
    assert refusal(class_folders) == f"{class_folders / 'train'} has no class folders, such as n01440764"


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_folder_that_is_no_class_is_refused(class_folders, split):
    write_jpeg(class_folders / split / "lost+found" / "x.JPEG", 0)
    message = f"{class_folders / split / 'lost+found'} is not named by a WordNet id, such as n01440764"
    assert refusal(class_folders) == message


@pytest.mark.parametrize("split", ["train", "val"])
def test_an_empty_class_folder_is_refused(class_folders, split):
    for image in (class_folders / split / WNIDS[2]).iterdir():
        image.rename(image.with_suffix(".txt"))
    assert refusal(class_folders) == f"class folder {class_folders / split / WNIDS[2]} has no images"


def test_a_missing_validation_folder_is_refused(class_folders):
    shutil.rmtree(class_folders / "val")
    assert refusal(class_folders) == f"no folder {class_folders / 'val'} beside {class_folders / 'train'}"


def test_an_empty_validation_folder_is_refused(class_folders):
    shutil.rmtree(class_folders / "val")
    (class_folders / "val").mkdir()
    assert refusal(class_folders) == f"{class_folders / 'val'} has neither class folders nor images"


def test_a_half_sorted_validation_folder_is_refused(class_folders):
    write_flat_val(class_folders)
    expected = (
        f"{class_folders / 'val'} has both class folders, such as n01440764, and images, such as 'ILSVRC2012_val_"
    )
    assert refusal(class_folders).startswith(expected)


@pytest.mark.parametrize(("there", "absent"), [("val", "train"), ("train", "val")])
def test_a_class_folder_of_one_split_only_is_refused(class_folders, there, absent):
    shutil.rmtree(class_folders / absent / WNIDS[1])
    assert refusal(class_folders) == (
        f"class {WNIDS[1]} is in {class_folders / there}, but not in {class_folders / absent}"
    )


@pytest.mark.parametrize("writer", WRITERS[1:3])
def test_an_annotated_class_that_training_lacks_is_refused(tmp_path, writer):
    writer(tmp_path)
    train = next(tmp_path.rglob("train"))
    shutil.rmtree(train / "n02012849")
    assert f"class 'n02012849' of ILSVRC2012_val_00000004 is not in {train}" in refusal(tmp_path)


@pytest.mark.parametrize("name", ["ILSVRC2012_val_00000006.JPEG", "holiday.jpg"])
@pytest.mark.parametrize("writer", WRITERS[1:3])
def test_a_validation_image_without_annotation_is_refused(tmp_path, writer, name):
    writer(tmp_path)
    val = next(tmp_path.rglob("val"))
    write_jpeg(val / name, 0)
    annotations = tmp_path / (TRUTH if writer is write_with_devkit else "LOC_val_solution.csv")
    assert refusal(tmp_path) == f"{val / name} has no annotation in {annotations}"


@pytest.mark.parametrize("writer", WRITERS[1:3])
def test_an_annotation_of_a_missing_image_is_refused(tmp_path, writer):
    writer(tmp_path)
    val = next(tmp_path.rglob("val"))
    for number in (3, 5):
        (val / f"ILSVRC2012_val_{number:08d}.JPEG").unlink()
    annotations = tmp_path / (TRUTH if writer is write_with_devkit else "LOC_val_solution.csv")
    assert refusal(tmp_path) == f"{annotations}: 2 images, such as ILSVRC2012_val_00000003, are missing in {val}"


@pytest.mark.parametrize("lost", [TRUTH, META])
def test_flat_validation_images_without_annotations_are_refused(with_devkit, lost):
    (with_devkit / lost).unlink()
    message = refusal(with_devkit)
    assert message.startswith(f"{with_devkit / 'val'} has no class folders, so LOC_val_solution.csv or {META} with ")
    assert message.endswith(f"is needed in {with_devkit} or {with_devkit.parent}")


@pytest.mark.parametrize("line", [str(INNER_ID), "0", "1861", "x", "", "1 2"])
def test_a_ground_truth_that_is_no_leaf_class_is_refused(with_devkit, line):
    truth = with_devkit / TRUTH
    lines = truth.read_text().splitlines()
    lines[1] = line
    truth.write_text("\n".join(lines))
    expected = f"{truth}: line 2 is {line!r}, which is not the id of a leaf class in {with_devkit / META}"
    assert refusal(with_devkit) == expected


@pytest.mark.parametrize("keep", [0, 200, -40], ids=["empty", "header", "truncated"])
def test_a_damaged_table_of_classes_is_refused(with_devkit, keep):
    meta = with_devkit / META
    meta.write_bytes(meta.read_bytes()[:keep])
    assert refusal(with_devkit).startswith(f"{meta} is not the meta.mat of the development kit: ")


@pytest.mark.parametrize("row", ["ILSVRC2012_val_00000001,", "ILSVRC2012_val_00000001", ",n01440764 1 2 3 4", "x, "])
def test_a_row_without_image_or_class_is_refused(kaggle, row):
    with (kaggle / "LOC_val_solution.csv").open("a") as file:
        file.write(row + "\n" + "ILSVRC2012_val_00000001,n03126707 1 2 3 4\n")
    expected = f"{kaggle / 'LOC_val_solution.csv'}: expected an ImageId and a PredictionString, got "
    assert refusal(kaggle).startswith(expected)


def test_a_table_with_other_columns_is_refused(kaggle):
    (kaggle / "LOC_val_solution.csv").write_text("id,class\nILSVRC2012_val_00000001,n03126707\n")
    assert "expected an ImageId and a PredictionString, got {'id'" in refusal(kaggle)


def test_two_classes_of_one_image_are_refused(kaggle):
    with (kaggle / "LOC_val_solution.csv").open("a") as file:
        file.write("ILSVRC2012_val_00000001,n01440764 1 2 3 4\n")
    assert refusal(kaggle).endswith("ILSVRC2012_val_00000001 has two classes, n03126707 and n01440764")


@pytest.mark.parametrize("table", ["LOC_val_solution.csv", "LOC_synset_mapping.txt"])
def test_a_table_that_is_no_text_is_refused(kaggle, table):
    (kaggle / table).write_bytes(b"ImageId,PredictionString\n\xff\xfe")
    assert refusal(kaggle).startswith(f"{kaggle / table} cannot be read: ")
