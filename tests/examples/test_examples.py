"""The examples run quietly, and what is class-balanced in them is what the library says it is."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from longtail import ClassBalancedLoss, class_counts, class_weight_dict, class_weights, sample_weights
from longtail.lab.data import SubsetOptions

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))
NEEDS = {
    "boosting": ["lightgbm", "xgboost"],
    "huggingface_trainer": ["accelerate", "transformers"],
    "keras_fit": ["keras"],
    "lightning_module": ["lightning"],
}
BANDS = {"next_word"}
"""Those that print the recall by frequency band."""
TRAINS_NOTHING = {"advise"}
LONG_TAIL = [120, 86, 61, 44, 31, 22, 16, 11, 8, 6]


def need_libraries_of(name):
    # Looked for, not imported: Keras reads its backend at import, and the example is who says it.
    if missing := [library for library in NEEDS.get(name, []) if importlib.util.find_spec(library) is None]:
        pytest.skip(f"examples/{name}.py was NOT TESTED: {', '.join(missing)} missing, make test-examples")


def load(name):
    need_libraries_of(name)
    spec = importlib.util.spec_from_file_location(f"example_{name}", ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_numbers(results):
    """Class-balanced finds more of the rarest classes than plain, and no less of all."""
    plain = [name for name in results if name.endswith("plain")]
    assert plain
    assert len(results) == 2 * len(plain)
    for name in plain:
        (every, rarest), (balanced_every, balanced_rarest) = (
            results[name],
            results[name.replace("plain", "class-balanced")],
        )
        assert 0 <= rarest < balanced_rarest <= 1
        assert every - 0.02 < balanced_every <= 1


def read(printed):
    """What an example printed, as its ``main`` returns it."""
    lines = re.findall(r"^(.*?(?:plain|class-balanced)) +\D+ ([\d.]+)   three rarest classes ([\d.]+)$", printed, re.M)
    return {name: (float(every), float(rarest)) for name, every, rarest in lines}


def check_bands(results):
    """Class-balanced finds more of the rare words, and more of all, when all count alike."""
    plain, balanced = results["plain"], results["class-balanced"]
    assert 0 <= plain["2 to 9"] < balanced["2 to 9"] <= 1
    assert plain["all words"] < balanced["all words"]


def read_bands(printed):
    """What an example with frequency bands printed, as its ``main`` returns it."""
    lines = [re.split(r" {2,}", line) for line in printed.splitlines()]
    return {name: {part[:-6]: float(part[-5:]) for part in parts} for name, *parts in lines}


def test_next_word_finds_more_rare_words_and_never_holds_the_logits(capsys, monkeypatch):
    example = load("next_word")
    data, test, words = example.windows()
    assert len(data) > 8 * len(test)
    assert data.max() == words - 1
    sizes = []
    forward = torch.nn.Linear.forward
    monkeypatch.setattr(torch.nn.Linear, "forward", lambda self, x: sizes.append(len(self.weight)) or forward(self, x))
    example.train(data, words, example.SoftmaxCrossEntropy(), steps=2)
    assert max(sizes) < words
    results = example.main()
    check_bands(results)
    printed = read_bands(capsys.readouterr().out)
    assert printed == {name: pytest.approx(bands, abs=6e-4) for name, bands in results.items()}


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in {*NEEDS, *BANDS, *TRAINS_NOTHING}])
def test_an_example_prints_what_it_found(name, capsys):
    results = load(name).main()
    check_numbers(results)
    assert read(capsys.readouterr().out) == {key: pytest.approx(pair, abs=6e-4) for key, pair in results.items()}


def test_advise_estimates_the_prototypes_of_each_class(capsys):
    found = load("advise").main("digits", image_size=32, subset=SubsetOptions(imbalance=50))
    lines = capsys.readouterr().out.splitlines()
    assert found.counts[[0, 9]].tolist() == [128, 2]
    assert 0 < found.pooled_beta < 1
    assert lines[0].startswith("0                        128 images   N ")
    assert lines[10:] == [f"one β for all classes: {found.pooled_beta:.6g}"]


# Lightning and Transformers import torchvision where it is installed, and the lab installs it. One of another build
# than torch fails; the lab's remedy for it comes first.
BESIDE_TORCHVISION = """
import runpy, sys, warnings
with warnings.catch_warnings(action="ignore"):
    from longtail.lab.models.backbones import import_timm
    import_timm()
runpy.run_path(sys.argv[1], run_name="__main__")
"""


@pytest.mark.examples
@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in TRAINS_NOTHING])
def test_an_example_runs_as_a_script_says_nothing_else_and_leaves_no_file(name, tmp_path):
    need_libraries_of(name)
    here = tmp_path / "here"
    here.mkdir()
    environment = os.environ | {"KERAS_BACKEND": "torch", "KERAS_HOME": str(tmp_path / "keras"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(ROOT / "examples" / f"{name}.py")]
    if name in ("huggingface_trainer", "lightning_module"):
        command[1:1] = ["-c", BESIDE_TORCHVISION]
    run = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    assert not list(here.iterdir())
    if name in BANDS:
        check_bands(read_bands(run.stdout))
        return
    check_numbers(read(run.stdout))
    assert len(run.stdout.splitlines()) == len(read(run.stdout)) + (name == "huggingface_trainer")


def test_every_example_is_in_the_documentation():
    pages = ("how-to/frameworks.md", "explanation/beta-from-images.md")
    page = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in pages)
    assert set(re.findall(r"\{literalinclude\} \.\./\.\./examples/(\w+)\.py", page)) == set(EXAMPLES)
    assert set(re.findall(r"\]\(\.\./\.\./examples/(\w+)\.py\)", page)) == set(EXAMPLES)


def test_plain_loop_counts_the_whole_training_set():
    dataset, test_set = load("plain_loop").long_tailed_digits()
    assert class_counts(dataset).tolist() == LONG_TAIL
    assert class_counts(test_set).min() >= 48


def test_scikit_learn_weighs_classes_and_samples_alike():
    example = load("scikit_learn")
    images, labels, test_images, _ = example.long_tailed_digits()
    models = dict(example.fit(images, labels))
    weights = class_weights(LONG_TAIL, beta=0.999, normalize="samples")
    assert np.mean(sample_weights(labels, weights)) == pytest.approx(1)

    by_sample = LogisticRegression().fit(images, labels, sample_weight=sample_weights(labels, weights))
    np.testing.assert_allclose(models["logistic regression, class-balanced"].coef_, by_sample.coef_, atol=1e-6)

    by_class = make_pipeline(StandardScaler(), SVC(class_weight=class_weight_dict(weights))).fit(images, labels)
    scores = models["support vectors, class-balanced"].decision_function(test_images)
    np.testing.assert_allclose(scores, by_class.decision_function(test_images), atol=1e-6)


def test_segmentation_weighs_pixels_and_skips_the_ignored_ones():
    example = load("segmentation")
    masks = torch.tensor([[[0, 0, 0], [0, 255, 3]], [[0, 0, 10], [*range(1, 3), 255]]])
    masks = torch.cat([masks.flatten(), torch.arange(11)]).reshape(1, 1, -1)
    criterion = example.criteria_for(masks)["class-balanced"]
    counts = np.array([7, 2, 2, 2, 1, 1, 1, 1, 1, 1, 2])
    np.testing.assert_allclose(criterion.class_weight, class_weights(counts, beta=0.9999), rtol=1e-6)

    logits = torch.randn(1, 11, *masks.shape[1:], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    valid = masks[0] != 255
    terms = F.cross_entropy(logits.squeeze(0)[:, valid].T, masks[0, valid], reduction="none")
    expected = (criterion.class_weight.double()[masks[0, valid]] * terms).mean()
    torch.testing.assert_close(criterion(logits, masks), expected)


def test_multi_label_weighs_a_sample_by_the_mean_of_its_classes():
    targets = torch.tensor([[1, 0, 1], [1, 0, 0], [1, 1, 0], [1, 0, 0]], dtype=torch.float32)
    criterion = load("multi_label").criteria_for(targets)["class-balanced"]
    weights = torch.as_tensor(class_weights([4, 1, 1], beta=0.999, normalize="samples"))
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    terms = F.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(1)
    expected = (targets.double() @ weights / targets.sum(1) * terms).mean()
    torch.testing.assert_close(criterion(logits, targets).double(), expected)


@pytest.mark.examples
def test_xgboost_and_lightgbm_get_the_weight_of_each_sample():
    example = load("boosting")
    import lightgbm
    import xgboost

    images, labels, test_images, _ = example.long_tailed_digits()
    models = dict(example.fit(images, labels))
    weights = class_weights(LONG_TAIL, beta=0.999, normalize="samples")

    data = xgboost.DMatrix(images, labels, weight=weights[labels])
    native = xgboost.train({"objective": "multi:softprob", "num_class": 10, "max_depth": 3}, data, 40)
    scores = models["XGBoost, class-balanced"].predict_proba(test_images)
    np.testing.assert_allclose(scores, native.predict(xgboost.DMatrix(test_images)), atol=1e-5)

    trees = {"n_estimators": 40, "num_leaves": 7, "min_child_samples": 1, "verbose": -1}
    by_class = lightgbm.LGBMClassifier(**trees, class_weight=class_weight_dict(weights)).fit(images, labels)
    scores = models["LightGBM, class-balanced"].predict_proba(test_images)
    np.testing.assert_allclose(scores, by_class.predict_proba(test_images), atol=1e-9)


# Keras hands NumPy an array of its own, in the way of NumPy 1.
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")
@pytest.mark.examples
def test_keras_computes_the_class_balanced_loss(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))  # where it writes its settings
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    example = load("keras_fit")
    images, labels, *_ = example.long_tailed_digits()
    weights = class_weights(LONG_TAIL, beta=0.999)
    model = example.train(images, labels, class_weight_dict(weights))
    batch = slice(None, None, 7)  # of every class
    logits = torch.tensor(model.predict(images[batch], verbose=0))
    loss = model.train_on_batch(images[batch], labels[batch], class_weight=class_weight_dict(weights))
    expected = ClassBalancedLoss(LONG_TAIL, "softmax", 0.999)(logits, torch.tensor(labels[batch]))
    assert float(loss) == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.examples
def test_lightning_keeps_the_class_weights_in_its_checkpoint(tmp_path):
    example = load("lightning_module")
    dataset, _ = example.long_tailed_digits()
    model = example.LongTailClassifier(class_counts(dataset).tolist(), beta=0.99)
    images, labels = dataset[:32]
    expected = ClassBalancedLoss(LONG_TAIL, "softmax", 0.99)(model.network(images), labels)
    torch.testing.assert_close(model.training_step((images, labels), 0), expected)

    trainer = example.Trainer(max_steps=1, logger=False, enable_checkpointing=False, enable_progress_bar=False)
    trainer.fit(model, example.DataLoader(dataset, batch_size=64))
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    loaded = example.LongTailClassifier.load_from_checkpoint(tmp_path / "last.ckpt")
    torch.testing.assert_close(loaded.criterion.class_weight, model.criterion.class_weight)
    torch.testing.assert_close(loaded.network(images), model.network(images))


@pytest.fixture
def texts():
    """The Trainer's example, a tokenizer and 96 texts of ten classes."""
    example = load("huggingface_trainer")
    pairs = [(text, label) for label, name in enumerate(example.MODULES[::-1]) for text in example.sentences(name)[:12]]
    tokenizer = example.make_tokenizer([text for text, _ in pairs])
    return example, tokenizer, example.tokenized(tokenizer, pairs[:96])


def without_dropout(trainer):
    for part in trainer.model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    return trainer


@pytest.mark.examples
def test_the_trainer_computes_the_class_balanced_loss(texts, tmp_path):
    example, tokenizer, data = texts
    trainer = without_dropout(example.make_trainer(tmp_path, tokenizer, data, example.class_balanced(LONG_TAIL)))
    batch = next(iter(trainer.get_train_dataloader()))
    labels = batch["labels"]
    loss, outputs = trainer.compute_loss(trainer.model, dict(batch), return_outputs=True)
    torch.testing.assert_close(loss, ClassBalancedLoss(LONG_TAIL, "softmax", 0.999)(outputs.logits, labels))


@pytest.mark.examples
def test_the_trainer_steps_alike_with_large_batches_and_with_accumulated_small_ones(texts, tmp_path):
    example, tokenizer, data = texts
    after = []
    for size, accumulated in [(32, 1), (8, 4)]:
        recipe = {"per_device_train_batch_size": size, "gradient_accumulation_steps": accumulated, "max_steps": 3}
        recipe |= {"optim": "sgd", "learning_rate": 0.5, "max_grad_norm": 1e9}  # Adam would hide a wrong scale
        loss = example.class_balanced(LONG_TAIL)
        trainer = without_dropout(example.make_trainer(tmp_path, tokenizer, data, loss, **recipe))
        trainer.train()
        after.append(torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()]))
    torch.testing.assert_close(*after, rtol=1e-4, atol=1e-5)
