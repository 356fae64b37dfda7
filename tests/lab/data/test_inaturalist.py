import copy
import json
import shutil

import pytest

from longtail.lab.data.errors import DataError
from longtail.lab.data.inaturalist import open_inaturalist
from tests.lab.data.trees import (
    CATEGORIES,
    TRAIN_IMAGES,
    inaturalist_document,
    labels_by_grey,
    write_document,
    write_inaturalist,
    write_jpeg,
)

YEARS = (2017, 2018)


@pytest.fixture(params=YEARS)
def year(request):
    return request.param


@pytest.fixture
def folder(tmp_path, year):
    write_inaturalist(tmp_path, year)
    return tmp_path


def edit(file, change):
    """Apply ``change`` to the document in ``file``."""
    document = json.loads(file.read_text(encoding="utf-8"))
    change(document)
    write_document(file, document)


def refusal(year, folder):
    """The message of the error, which is one line."""
    with pytest.raises(DataError) as caught:
        open_inaturalist(year, folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_image_gets_the_label_of_its_own_annotation(folder, year):
    dataset = open_inaturalist(year, folder)
    for images in (dataset.train, dataset.test):
        assert labels_by_grey(images) == images.labels.tolist()
    assert dataset.counts.tolist() == [2, 3, 1]
    assert len(dataset.test) == 3


def test_the_generated_tree_betrays_a_join_by_position(year):
    document = inaturalist_document(year, TRAIN_IMAGES)
    by_position = [annotation["category_id"] for annotation in document["annotations"]]
    assert by_position != [category for _, category in TRAIN_IMAGES]


def test_a_category_becomes_the_rank_of_its_id_as_a_number(folder, year):
    names = ["Plantae/7", "Aves/41", "Mollusca/300"]
    if year == 2017:
        names = ["Plantae/Ficus variegata", "Aves/Corvus corax", "Mollusca/Ficus variegata"]
    assert open_inaturalist(year, folder).classes == tuple(names)


@pytest.mark.parametrize("section", ["images", "annotations", "categories"])
def test_the_order_in_the_json_does_not_matter(folder, year, section):
    before = open_inaturalist(year, folder)
    for split in ("train", "val"):
        edit(folder / f"{split}{year}.json", lambda document: document[section].reverse())
    after = open_inaturalist(year, folder)
    assert after.classes == before.classes
    for one, other in ((before.train, after.train), (before.test, after.test)):
        assert one.paths.tolist() == other.paths.tolist()
        assert one.labels.tolist() == other.labels.tolist()


def test_images_are_in_the_order_of_their_file_names(folder, year):
    dataset = open_inaturalist(year, folder)
    in_the_file = [record["file_name"].encode() for record in inaturalist_document(year, TRAIN_IMAGES)["images"]]
    assert dataset.train.paths.tolist() == sorted(in_the_file)
    assert dataset.train.paths.tolist() != in_the_file


def test_it_tells_its_name_and_how_to_normalise_pixels(folder, year):
    dataset = open_inaturalist(year, folder)
    assert dataset.name == f"inaturalist{year}"
    assert dataset.mean == pytest.approx((118.83, 120.105, 96.9))
    assert dataset.std == pytest.approx((49.725, 49.47, 48.96))


def test_the_folder_of_the_data_set_is_preferred_to_the_data_folder(folder, year):
    inner = folder / f"inaturalist{year}"
    write_inaturalist(inner, year)
    assert open_inaturalist(year, folder).train.root == inner
    shutil.rmtree(inner)
    assert open_inaturalist(year, folder).train.root == folder


def test_the_json_files_may_be_in_the_folder_of_their_archive(tmp_path):
    write_inaturalist(tmp_path, 2017)
    (tmp_path / "train_val2017").mkdir()
    for name in ("train2017.json", "val2017.json"):
        (tmp_path / name).rename(tmp_path / "train_val2017" / name)
    dataset = open_inaturalist(2017, tmp_path)
    assert labels_by_grey(dataset.train) == dataset.train.labels.tolist()


def test_the_same_annotation_twice_is_one(folder, year):
    before = open_inaturalist(year, folder).train.paths.tolist()
    edit(folder / f"train{year}.json", lambda document: document["annotations"].append(document["annotations"][0]))
    assert open_inaturalist(year, folder).train.paths.tolist() == before


def test_names_beyond_ascii_and_with_two_dots_are_found(tmp_path):
    write_inaturalist(tmp_path, 2018)
    write_jpeg(tmp_path / "train_val2018" / "Käfer..x" / "1..jpg", 0)

    def move(document):
        document["images"][1]["file_name"] = "train_val2018/Käfer..x/1..jpg"

    edit(tmp_path / "train2018.json", move)
    assert "train_val2018/Käfer..x/1..jpg".encode() in open_inaturalist(2018, tmp_path).train.paths.tolist()


def test_another_year_is_refused(tmp_path):
    with pytest.raises(ValueError, match="year must be 2017 or 2018, got 2019"):
        open_inaturalist(2019, tmp_path)


def test_a_missing_folder_is_refused(tmp_path, year):
    message = refusal(year, tmp_path / "nowhere")
    assert f"no folder {tmp_path / 'nowhere'} to find train{year}.json in" in message
    assert f"`longtail data fetch inaturalist{year}` gets it" in message


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_missing_json_is_refused(folder, year, split):
    (folder / f"{split}{year}.json").unlink()
    message = refusal(year, folder)
    assert message == f"no {split}{year}.json in {folder}: `longtail data fetch inaturalist{year}` gets it"


@pytest.mark.parametrize(
    "content", [b"", b"not JSON", b'{"a": "\xff"}', b"[" * 100_000], ids=["", "text", "ff", "deep"]
)
def test_what_is_not_json_is_refused(folder, year, content):
    file = folder / f"val{year}.json"
    file.write_bytes(content)
    assert refusal(year, folder).startswith(f"{file} is not valid JSON")


def test_truncated_json_is_refused(folder, year):
    file = folder / f"train{year}.json"
    file.write_bytes(file.read_bytes()[:-200])
    assert refusal(year, folder).startswith(f"{file} is not valid JSON, perhaps it is truncated")


def test_json_that_is_no_object_is_refused(folder, year):
    write_document(folder / f"train{year}.json", [1, 2])
    assert refusal(year, folder) == f"{folder / f'train{year}.json'} must hold a JSON object, not list"


@pytest.mark.parametrize("section", ["images", "annotations", "categories"])
@pytest.mark.parametrize("value", [None, {"a": 1}, "text"], ids=["absent", "object", "text"])
def test_a_missing_list_is_refused(folder, year, section, value):
    def change(document):
        del document[section]
        if value is not None:
            document[section] = value

    edit(folder / f"train{year}.json", change)
    assert refusal(year, folder) == f"{folder / f'train{year}.json'} has no list {section!r}"


KEYS = [
    ("images", "id", "integer"),
    ("images", "file_name", "text"),
    ("annotations", "image_id", "integer"),
    ("annotations", "category_id", "integer"),
    ("categories", "id", "integer"),
    ("categories", "name", "text"),
    ("categories", "supercategory", "text"),
]


@pytest.mark.parametrize(("section", "key", "kind"), KEYS)
@pytest.mark.parametrize("value", ["absent", None, True, 1.5, [1]], ids=repr)
def test_a_missing_key_or_a_wrong_type_is_refused(tmp_path, section, key, kind, value):
    write_inaturalist(tmp_path, 2018)

    def change(document):
        document[section][1].pop(key)
        if value != "absent":
            document[section][1][key] = value

    edit(tmp_path / "train2018.json", change)
    message = refusal(2018, tmp_path)
    assert message.startswith(f"{tmp_path / 'train2018.json'}: {section}[1] has no {kind} {key!r}: {{")


def test_a_record_that_is_no_object_is_refused(folder, year):
    edit(folder / f"train{year}.json", lambda document: document["annotations"].append(17))
    assert refusal(year, folder).endswith("annotations[6] has no integer 'image_id': 17")


def test_an_annotation_of_an_unknown_image_is_refused(folder, year):
    annotation = {"id": 1, "image_id": 999, "category_id": 7}
    edit(folder / f"train{year}.json", lambda document: document["annotations"].append(annotation))
    expected = f"{folder / f'train{year}.json'}: an annotation names image 999, which is not among the images"
    assert refusal(year, folder) == expected


def test_an_image_without_annotation_is_refused(folder, year):
    file = folder / f"val{year}.json"
    removed = json.loads(file.read_text())["annotations"][0]["image_id"]
    edit(file, lambda document: document["annotations"].pop(0))
    message = refusal(year, folder)
    assert message.startswith(f"{file}: image {removed}, 'train_val")
    assert message.endswith(".jpg', has no annotation")


def test_two_different_annotations_of_one_image_are_refused(folder, year):
    annotation = {"id": 1, "image_id": 12, "category_id": 41}
    edit(folder / f"train{year}.json", lambda document: document["annotations"].append(annotation))
    assert refusal(year, folder) == f"{folder / f'train{year}.json'}: image 12 has two categories, 7 and 41"


def test_an_annotation_with_an_unknown_category_is_refused(folder, year):
    def change(document):
        document["annotations"][0].update(image_id=12, category_id=8)

    edit(folder / f"train{year}.json", change)
    assert refusal(year, folder).endswith("image 12 has category 8, which is not among the categories")


def test_a_category_of_the_test_set_that_training_lacks_is_refused(folder, year):
    def change(document):
        document["categories"].append({"id": 9, "name": "new", "supercategory": "Fungi"})
        document["annotations"][0]["category_id"] = 9

    edit(folder / f"val{year}.json", change)
    train, val = folder / f"train{year}.json", folder / f"val{year}.json"
    assert refusal(year, folder) == f"{val}: category 9, 'Fungi/new', is not among those of {train}"


def test_a_category_with_another_name_in_the_test_set_is_refused(folder, year):
    def change(document):
        first, second = document["categories"][:2]
        first["id"], second["id"] = second["id"], first["id"]

    edit(folder / f"val{year}.json", change)
    message = refusal(year, folder)
    assert message.startswith(f"{folder / f'val{year}.json'}: category 41 is 'Mollusca/")
    assert "but 'Aves/" in message


@pytest.mark.parametrize("same", [{"id": 41}, {"supercategory": "Aves"}], ids=["id", "name"])
def test_two_categories_with_one_id_or_one_name_are_refused(folder, year, same):
    def change(document):
        first = next(category for category in document["categories"] if category["id"] == 41)
        document["categories"].append({"id": 8, "name": first["name"], "supercategory": "Fungi", **same})

    edit(folder / f"train{year}.json", change)
    assert refusal(year, folder).endswith("occurs twice in id or name")


@pytest.mark.parametrize(
    "file_name",
    ["/etc/x.jpg", "../x.jpg", "train_val2018/../../x.jpg", "train_val2018/Aves/.."],
)
def test_a_file_name_that_leads_out_of_the_folder_is_refused(folder, year, file_name):
    def change(document):
        document["images"][1]["file_name"] = file_name

    edit(folder / f"train{year}.json", change)
    message = refusal(year, folder)
    assert message == (
        f"{folder / f'train{year}.json'}: file name {file_name!r} of image 12 leads out of the data folder"
    )


@pytest.mark.parametrize("key", ["id", "file_name"])
def test_two_images_with_one_id_or_one_file_name_are_refused(folder, year, key):
    def change(document):
        twin = copy.deepcopy(document["images"][1])
        twin.update({"id": 13, "file_name": "other.jpg", key: twin[key]})
        document["images"].append(twin)
        document["annotations"].append({"id": 1, "image_id": 13, "category_id": 7})

    edit(folder / f"train{year}.json", change)
    assert f"two images have the {key.replace('_', ' ')} " in refusal(year, folder)


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_missing_image_is_refused(folder, year, split):
    records = json.loads((folder / f"{split}{year}.json").read_text())["images"]
    missing, is_a_folder = records[0]["file_name"], records[1]["file_name"]
    (folder / missing).unlink()
    (folder / is_a_folder).unlink()
    (folder / is_a_folder).mkdir()
    count = f"2 of {len(records)} images of {split}{year}.json are missing"
    hint = f"`longtail data fetch inaturalist{year}` gets them"
    assert refusal(year, folder) == f"{folder}: {count}, such as {min(missing, is_a_folder)!r}: {hint}"


@pytest.mark.parametrize("file_name", ["no/such/folder/x.jpg", "a\0b/x.jpg", "\ud800/x.jpg"], ids=ascii)
def test_an_image_in_a_folder_that_cannot_be_is_missing(folder, year, file_name):
    def change(document):
        document["images"][1]["file_name"] = file_name

    edit(folder / f"train{year}.json", change)
    assert f"1 of 6 images of train{year}.json are missing, such as {file_name!r}" in refusal(year, folder)


def test_a_category_without_training_images_is_refused(folder, year):
    for split in ("train", "val"):
        edit(
            folder / f"{split}{year}.json",
            lambda document: document["categories"].append({"id": 8, "name": "rare", "supercategory": "Fungi"}),
        )
    assert refusal(year, folder) == f"inaturalist{year}: class 'Fungi/rare' has no training images"


def test_a_set_without_images_is_refused(folder, year):
    edit(folder / f"val{year}.json", lambda document: document.update(images=[], annotations=[]))
    assert refusal(year, folder) == f"inaturalist{year} has no test images"


def test_the_generated_tree_has_the_official_layout(folder, year):
    top = {2017: "train_val_images", 2018: "train_val2018"}[year]
    leaves = {path.parent.relative_to(folder).as_posix() for path in folder.rglob("*.jpg")}
    names = [str(category["id"] if year == 2018 else category["name"]) for category in CATEGORIES]
    assert leaves == {
        f"{top}/{category['supercategory']}/{name}" for category, name in zip(CATEGORIES, names, strict=True)
    }
