"""Models of timm: how timm is imported, what they take, and what their last layer sees."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from longtail.heads import NormedLinear
from longtail.lab.data import ImageDataset, ImageFiles, InMemoryImages, evaluation_loader, training_loader
from longtail.lab.models import build_model, classifier, feature_size, input_spec, pooled_features
from longtail.lab.models.backbones import BROKEN_TORCHVISION, import_timm


def run_python(code, *folders):
    """In a process of its own, with packages of these folders before the installed ones."""
    path = os.pathsep.join([*map(str, folders), *sys.path])
    environment = os.environ | {"PYTHONPATH": path}
    finished = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, env=environment, check=False
    )
    assert finished.returncode == 0, finished.stderr
    return finished


WORKING = """
transforms = functional = InterpolationMode = None
"""

BROKEN = f"""
import torch
try:
    torch.library.get_ctx  # noqa
except AttributeError:
    pass
if not torch._C._jit_get_schemas_for_operator("torchvision::nms"):
    raise RuntimeError("{BROKEN_TORCHVISION}")
from torchvision import part
"""


def fake_torchvision(folder, content):
    """A package of that name in which everything that timm asks for exists, or which fails to import."""
    package = folder / "torchvision"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(content, encoding="utf-8")
    (package / "part.py").write_text("loaded = True\n", encoding="utf-8")
    return folder


IMPORT = """
import sys, types, warnings
import torch
sys.modules["timm"] = types.ModuleType("timm")  # only how torchvision is imported is of interest
sys.modules["timm.optim"] = types.ModuleType("timm.optim")
from longtail.lab.models.backbones import _SCHEMAS, import_timm
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    try:
        import_timm()
        error = None
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
print([str(warning.message)[:45] for warning in warned], len(_SCHEMAS), error)
print(bool(torch._C._jit_get_schemas_for_operator("torchvision::nms")))
"""


def test_a_working_torchvision_is_left_alone(tmp_path):
    told = run_python(IMPORT, fake_torchvision(tmp_path, WORKING)).stdout.splitlines()
    assert told == ["[] 0 None", "False"]


def test_a_torchvision_of_another_torch_is_imported_without_its_operators(tmp_path):
    told = run_python(IMPORT, fake_torchvision(tmp_path, BROKEN)).stdout.splitlines()
    assert told == ["['torchvision was built for another torch than '] 1 None", "True"]


@pytest.mark.parametrize("message", ["operator torchvision::roi_align does not exist", "no kernel image"])
def test_another_error_of_torchvision_is_raised_as_it_is(tmp_path, message):
    told = run_python(IMPORT, fake_torchvision(tmp_path, f"raise RuntimeError({message!r})")).stdout.splitlines()
    assert told == [f"[] 0 RuntimeError: {message}", "False"]


def test_the_installed_timm_builds_and_runs_in_a_process_of_its_own():
    code = """
    import warnings
    warnings.simplefilter("ignore")
    import torch
    from longtail.lab.models import build_model
    print(tuple(build_model("tf_efficientnet_lite0", 3).eval()(torch.zeros(1, 3, 64, 64)).shape))
    """
    assert run_python(code).stdout == "(1, 3)\n"


def test_the_lab_does_not_import_timm():
    code = """
    import sys
    import longtail.lab, longtail.lab.cli.app, longtail.lab.training, longtail.lab.experiments, longtail.lab.recipes
    from longtail.lab.recipes import configure
    configure({"data": "photos"}), configure({"data": "digits"}), configure({"data": "imagenet"})
    print([name for name in ("timm", "torchvision", "huggingface_hub") if name in sys.modules])
    """
    assert run_python(code).stdout == "[]\n"


@pytest.mark.parametrize(
    "name",
    [
        "resnet8",
        "resnet18",
        "tf_efficientnet_lite0",
        "test_convnext",
        "test_vit",
        "test_mambaout",
        "mobilenetv3_small_050",
    ],
)
@pytest.mark.parametrize("cosine_scale", [None, 20.0])
def test_logits_are_the_last_layer_on_the_features(name, cosine_scale):
    network = build_model(name, 4, cosine_scale=cosine_scale).eval()
    size = 160 if name == "test_vit" else 64
    images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        features = pooled_features(network, images)
        assert torch.equal(classifier(network)(features), network(images))
    assert features.shape == (2, feature_size(network))
    assert isinstance(classifier(network), NormedLinear if cosine_scale else nn.Linear)


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "test_convnext", "test_vit"])
def test_new_networks_start_as_ours_did(name):
    """Blocks of ResNets at the identity, the last layer near zero, sigmoid losses at the class prior."""
    torch.manual_seed(0)
    network = build_model(name, 100, prior_bias=True)
    head = classifier(network)
    assert head.weight.std().item() == pytest.approx(0.01, rel=0.1)
    assert head.bias.sigmoid().tolist() == pytest.approx([0.01] * 100)
    assert classifier(build_model(name, 100)).bias.abs().sum() == 0
    if name.startswith("resnet"):
        last = [block.bn2 if name == "resnet18" else block.bn3 for block in network.layer1]
        assert all((norm.weight == 0).all() for norm in last)


@pytest.mark.parametrize("name", ["deit_tiny_distilled_patch16_224", "resnetv2_50"])
def test_models_without_one_linear_last_layer_are_refused(name):
    with torch.device("meta"), pytest.raises(ValueError, match="it has no single linear last layer"):
        build_model(name, 5)


def test_transformers_are_built_for_the_image_size():
    network = build_model("test_vit", 3, image_size=96)
    with torch.no_grad():
        assert network(torch.zeros(1, 3, 96, 96)).shape == (1, 3)
    with pytest.raises(ValueError, match="cannot build test_vit for an input of 5 pixels"):
        build_model("test_vit", 3, image_size=5)


def test_input_specs_are_those_of_timm():
    timm = import_timm()
    for name in ("tf_efficientnet_lite0", "resnet50.tv_in1k", "vit_small_patch14_dinov2.lvd142m"):
        with torch.device("meta"):
            expected = timm.data.resolve_model_data_config(timm.create_model(name))
        spec = input_spec(name)
        assert (spec.input_size, spec.interpolation) == (expected["input_size"][-1], expected["interpolation"])
        assert spec.crop_fraction == expected["crop_pct"]
        assert np.array(spec.mean) / 255 == pytest.approx(np.array(expected["mean"]))
        assert np.array(spec.std) / 255 == pytest.approx(np.array(expected["std"]))
        assert input_spec(name, 96).input_size == 96
    assert input_spec("resnet32") is None


def photograph(folder):
    """A smooth picture, for which ways to scale it differ by a shade."""
    y, x = np.mgrid[0:300, 0:400]
    pixels = np.stack([127 + 120 * np.sin(x / 30), 127 + 120 * np.cos(y / 25), (x + y) * 0.3], axis=-1)
    Image.fromarray(pixels.astype(np.uint8)).save(folder / "photo.png")
    return ImageFiles(folder, ["photo.png"], [0])


@pytest.mark.parametrize("name", ["tf_efficientnet_lite0", "resnet50.tv_in1k", "test_convnext"])
def test_images_are_prepared_as_timm_does(tmp_path, name):
    timm = import_timm()
    images = photograph(tmp_path)
    dataset = ImageDataset(name="x", classes=("a",), train=images, test=images).prepared_for(input_spec(name))
    (batch,) = evaluation_loader(dataset, 1, workers=0).epoch(0)
    with torch.device("meta"):
        config = timm.data.resolve_model_data_config(timm.create_model(name))
    with Image.open(tmp_path / "photo.png") as picture:
        expected = timm.data.create_transform(**config)(picture)
    shades = (batch.images[0] - expected).abs() * torch.tensor(config["std"])[:, None, None] * 255
    assert shades.max() < 6  # half a pixel of a slope of 4 to 5 shades, and rounding
    assert shades.mean() <= 1


@pytest.mark.parametrize("loader", [training_loader, evaluation_loader])
def test_images_in_memory_are_scaled_and_grey_is_repeated(loader):
    pixels = torch.arange(4 * 64, dtype=torch.uint8).view(4, 1, 8, 8)
    images = InMemoryImages(pixels, [0, 0, 0, 0])
    dataset = ImageDataset(name="x", classes=("a",), train=images, test=images, mean=(0.0,), std=(1.0,), flip=False)
    spec = input_spec("tf_efficientnet_lite0", 32)
    (batch,) = loader(dataset.prepared_for(spec), 4).epoch(0)
    assert batch.images.shape == (4, 3, 32, 32)
    assert torch.equal(batch.images[:, 0], batch.images[:, 2])
    first = 127.5 * (batch.images[:, 0] + 1)
    expected = sorted(pixels.float().mean(dim=(1, 2, 3)).tolist())
    assert sorted(first.mean(dim=(1, 2)).tolist()) == pytest.approx(expected, abs=1)
