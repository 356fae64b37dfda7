"""The networks: sizes, names and starting points that are known."""

import pytest
import torch
from torch.nn import functional as F

from longtail.functional import focal_loss, sigmoid_cross_entropy, softmax_cross_entropy
from longtail.lab.models import CIFAR_MODELS, CifarResNet, build_model

KNOWN_SIZES = {
    # He et al., table 6, and the exact counts of networks with parameter-free shortcuts.
    ("resnet20", 10): 269_722,
    ("resnet32", 10): 464_154,
    ("resnet44", 10): 658_586,
    ("resnet56", 10): 853_018,
    ("resnet110", 10): 1_727_962,
    # torchvision's.
    ("resnet18", 1000): 11_689_512,
    ("resnet34", 1000): 21_797_672,
    ("resnet50", 1000): 25_557_032,
    ("resnet101", 1000): 44_549_160,
    ("resnet152", 1000): 60_192_808,
}


@pytest.mark.parametrize(("name", "num_classes"), KNOWN_SIZES)
def test_the_number_of_parameters_is_the_known_one(name, num_classes):
    with torch.device("meta"):
        network = build_model(name, num_classes)
    assert sum(weight.numel() for weight in network.parameters()) == KNOWN_SIZES[name, num_classes]


def torchvision_names(blocks, convolutions):
    """The names that torchvision gives to the weights and statistics of a ResNet."""

    def norm(name):
        return [f"{name}.{part}" for part in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")]

    names = ["conv1.weight", *norm("bn1"), "fc.weight", "fc.bias"]
    for layer, count in enumerate(blocks, start=1):
        for block in range(count):
            prefix = f"layer{layer}.{block}"
            for number in range(1, convolutions + 1):
                names += [f"{prefix}.conv{number}.weight", *norm(f"{prefix}.bn{number}")]
            if block == 0 and (layer > 1 or convolutions == 3):
                names += [f"{prefix}.downsample.0.weight", *norm(f"{prefix}.downsample.1")]
    return sorted(names)


@pytest.mark.parametrize(
    ("depth", "blocks", "convolutions"),
    [
        (18, (2, 2, 2, 2), 2),
        (34, (3, 4, 6, 3), 2),
        (50, (3, 4, 6, 3), 3),
        (101, (3, 4, 23, 3), 3),
        (152, (3, 8, 36, 3), 3),
    ],
)
def test_published_weights_of_torchvision_load(depth, blocks, convolutions):
    with torch.device("meta"):
        network = build_model(f"resnet{depth}", 1000)
    assert sorted(network.state_dict()) == torchvision_names(blocks, convolutions)
    shapes = {name: tuple(weight.shape) for name, weight in network.state_dict().items()}
    assert shapes["conv1.weight"] == (64, 3, 7, 7)
    assert shapes["fc.weight"] == (1000, 2048 if depth >= 50 else 512)
    if depth >= 50:
        assert shapes["layer2.0.conv2.weight"] == (128, 128, 3, 3)
        assert network.layer2[0].conv2.stride == (2, 2)
        assert network.layer2[0].conv1.stride == (1, 1)


@pytest.mark.parametrize("name", ["resnet8", "resnet20"])
@pytest.mark.parametrize(("channels", "size"), [(1, 8), (3, 32), (4, 33), (3, 5)])
def test_small_networks_take_images_of_any_size_and_any_number_of_channels(name, channels, size):
    network = build_model(name, 7, channels)
    logits = network(torch.randn(2, channels, size, size))
    assert logits.shape == (2, 7)
    logits.sum().backward()
    assert all(weight.grad is not None for weight in network.parameters())


def test_a_shortcut_has_no_parameters_and_pads_with_zero_channels():
    """With convolutions that give zero, a block is its shortcut: every second pixel, new channels around the old."""
    network = CifarResNet(8, 10)
    block = network.stages[1][0].eval()
    torch.nn.init.zeros_(block.conv2.weight)
    maps = torch.rand(1, 16, 6, 6)
    out = block(maps)
    assert torch.equal(out[:, 8:24], maps[:, :, ::2, ::2])
    assert out[:, :8].abs().sum() == out[:, 24:].abs().sum() == 0


def test_photograph_networks_see_224_and_320():
    network = build_model("resnet18", 5).eval()
    with torch.no_grad():
        assert network(torch.zeros(1, 3, 224, 224)).shape == network(torch.zeros(1, 3, 320, 320)).shape == (1, 5)


def test_the_prior_bias_starts_sigmoid_losses_at_the_class_prior():
    """Without it every class starts at 1/2, and the C-1 wrong ones make the first loss about C log 2."""
    torch.manual_seed(0)
    images, labels = torch.randn(64, 3, 32, 32), torch.arange(64) % 100
    first = {}
    for prior in (False, True):
        torch.manual_seed(1)
        network = build_model("resnet8", 100, prior_bias=prior)
        torch.nn.init.normal_(network.fc.weight, std=0.01)
        first[prior] = sigmoid_cross_entropy(network(images), labels).item()
    entropy = 100 * F.binary_cross_entropy(torch.tensor(0.01), torch.tensor(0.01)).item()
    assert first[False] == pytest.approx(100 * 0.6931, rel=0.05)
    assert first[True] == pytest.approx(entropy, rel=0.05)
    logits = build_model("resnet8", 100, prior_bias=True)(images)
    assert focal_loss(logits, labels, gamma=0.5).isfinite()
    assert softmax_cross_entropy(logits, labels).isfinite()


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("resnte50", "did you mean 'resnet50', "),
        ("resnet33", "did you mean 'resnet.*', 'resnet"),
        ("convnext_tiny.in12kft", "did you mean 'convnext_tiny.in12k"),
        ("resnet50.nonsense", "did you mean 'resnet50."),
        ("", "timm.list_models"),
    ],
)
def test_an_unknown_model_is_refused_with_the_nearest_names_in_one_line(wrong, hint):
    with pytest.raises(ValueError, match=f"unknown model '{wrong}': {hint}") as refused:
        build_model(wrong, 10)
    assert len(str(refused.value)) < 200


def test_depths_that_do_not_exist_are_refused():
    with pytest.raises(ValueError, match=r"depth must be 6n\+2, such as 8"):
        CifarResNet(18, 10)


@pytest.mark.parametrize("name", CIFAR_MODELS)
def test_every_small_network_can_be_built(name):
    with torch.device("meta"):
        assert build_model(name, 3, 1).fc.out_features == 3
