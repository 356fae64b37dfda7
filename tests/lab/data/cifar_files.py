"""Small CIFAR releases in the official layouts, and Python 2's way of pickling them."""

import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np

FORMS = {
    "cifar10": ("cifar-10-batches-bin", "cifar-10-batches-py"),
    "cifar20": ("cifar-100-binary", "cifar-100-python"),
    "cifar100": ("cifar-100-binary", "cifar-100-python"),
}
NAMES_10 = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
FINE = [f"fine_{label}" for label in range(100)]
COARSE = [f"coarse_{label}" for label in range(20)]


class Python2Pickler(pickle._Pickler):
    """Writes what Python 2's pickle wrote, protocol 2: text as byte strings, arrays by NumPy's old names."""

    dispatch = pickle._Pickler.dispatch.copy()

    def __init__(self, file):
        super().__init__(file, protocol=2)

    def save_string(self, content):
        small = len(content) < 256
        header = b"U" + bytes([len(content)]) if small else b"T" + struct.pack("<i", len(content))
        self.write(header + content)
        self.memoize(content)

    dispatch[bytes] = save_string

    def save_array(self, array):
        self.write(b"cnumpy.core.multiarray\n_reconstruct\n" + b"cnumpy\nndarray\n")
        self.save((0,))
        self.save(b"b")
        self.write(b"\x87R(K\x01")  # a tuple of three, the call, and the state: version 1,
        self.save(array.shape)  # the shape,
        self.write(b"cnumpy\ndtype\n")
        self.save(array.dtype.str.lstrip("|<").encode())
        self.write(b"K\x00K\x01\x87R(K\x03")
        self.save(b"|" if array.dtype.itemsize == 1 else b"<")
        self.write(b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89")  # the dtype, not in Fortran's order,
        self.save(array.tobytes())
        self.write(b"tb")

    dispatch[np.ndarray] = save_array


def python2_dump(content, path):
    with path.open("wb") as file:
        Python2Pickler(file).dump(content)


def python3_dump(content, path):
    path.write_bytes(pickle.dumps(content, protocol=2))


def images_of(seed, count):
    return np.random.default_rng(seed).integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)


def fine_labels(count):
    return [(7 * place) % 100 for place in range(count)]


def write_release(folder: Path, form: str, count=100, dump=python2_dump):
    """Five training batches of ``count`` / 5 images and a test batch of as many; batch b has the images of seed b."""
    target = folder / form
    target.mkdir(parents=True)
    each = count // 5
    if form.startswith("cifar-10-"):
        for batch, name in enumerate([*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]):
            labels = [place % 10 for place in range(each)]
            _write(target, form.endswith("bin"), name, images_of(batch, each), {"labels": labels}, dump)
        _write_names(target, form.endswith("bin"), "batches.meta", {"label_names": NAMES_10}, dump)
    else:
        for split, name in enumerate(("train", "test")):
            fine = fine_labels(count)
            labels = {"coarse_labels": [label // 5 for label in fine], "fine_labels": fine}
            _write(target, form.endswith("binary"), name, images_of(split, count), labels, dump)
        names = {"fine_label_names": FINE, "coarse_label_names": COARSE}
        _write_names(target, form.endswith("binary"), "meta", names, dump)
    return target


def _write(target, binary, name, images, labels, dump):
    if binary:
        columns = [np.array(values, np.uint8)[:, None] for values in labels.values()]
        records = np.concatenate([*columns, images.reshape(len(images), -1)], axis=1)
        (target / f"{name}.bin").write_bytes(records.tobytes())
        return
    batch = {key.encode(): values for key, values in labels.items()}
    names = [f"{place}.png".encode() for place in range(len(images))]
    dump(
        {b"data": images.reshape(len(images), -1), b"batch_label": b"a batch", b"filenames": names} | batch,
        target / name,
    )


def _write_names(target, binary, name, names, dump):
    if not binary:
        dump({key.encode(): [value.encode() for value in values] for key, values in names.items()}, target / name)
    elif name == "batches.meta":
        (target / "batches.meta.txt").write_text("\n".join(NAMES_10) + "\n\n")  # the official file ends like this
    else:
        for key, values in names.items():
            (target / f"{key}.txt").write_text("\n".join(values) + "\n")


def pack(folder: Path, form: str, archive: Path):
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder / form, form)
