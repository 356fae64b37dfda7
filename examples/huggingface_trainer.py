"""Hugging Face Trainer: ``compute_loss_func``, on a long-tailed text set that every Python brings along."""

import ast
import importlib.util
import re
from pathlib import Path
from tempfile import TemporaryDirectory

from sklearn.metrics import recall_score
from sklearn.model_selection import train_test_split
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
    PrinterCallback,
    Trainer,
    TrainingArguments,
    set_seed,
)

from longtail import ClassBalancedLoss, class_counts

MODULES = ["email", "asyncio", "logging", "unittest", "ipaddress", "statistics", "tarfile", "shutil", "json", "random"]


def class_balanced(counts):
    """What the Trainer takes as ``compute_loss_func``."""
    criterion = ClassBalancedLoss(counts, loss="softmax", beta=0.999, reduction="sum")

    def compute_loss(outputs, labels, num_items_in_batch=None):
        # The Trainer counts the samples of all accumulated batches, of all processes, and leaves the mean to the loss.
        samples = len(labels) if num_items_in_batch is None else num_items_in_batch
        return criterion.to(labels.device)(outputs.logits, labels) / samples

    return compute_loss


def sentences(module):
    """Sentences in the docstrings of a module of the standard library."""
    source = Path(importlib.util.find_spec(module).origin)
    documented = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
    found = {}  # each once, in order
    for path in sorted(source.parent.rglob("*.py")) if source.name == "__init__.py" else [source]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, documented) and (text := ast.get_docstring(node)):
                found |= dict.fromkeys(" ".join(part.split()) for part in re.split(r"\n\s*\n|(?<=[.!?])\s", text))
    return [sentence for sentence in found if len(sentence.split()) > 3]


def make_tokenizer(texts):
    """A tokenizer of the words in the training set; yours comes with your model."""
    words = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    words.normalizer, words.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.BertPreTokenizer()
    pieces = trainers.WordPieceTrainer(special_tokens=["[PAD]", "[UNK]"], vocab_size=2000, show_progress=False)
    words.train_from_iterator(texts, pieces)
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", model_max_length=32)


def tokenized(tokenizer, pairs):
    """Pairs of a text and its label as the Trainer takes them."""
    return [{**tokenizer(text, truncation=True), "labels": label} for text, label in pairs]


def make_trainer(folder, tokenizer, train_set, loss, **recipe):
    """A small BERT from scratch; in your project it is ``from_pretrained``."""
    set_seed(0)
    small = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 128}
    model = BertForSequenceClassification(BertConfig(vocab_size=len(tokenizer), num_labels=len(MODULES), **small))
    recipe = {"per_device_train_batch_size": 32, "learning_rate": 2e-3, "num_train_epochs": 4} | recipe
    quiet = {"disable_tqdm": True, "logging_strategy": "no", "report_to": "none", "save_strategy": "no"}
    quiet["dataloader_pin_memory"] = False  # which warns where there is no GPU
    arguments = TrainingArguments(folder, **recipe, **quiet)
    trainer = Trainer(model, arguments, train_dataset=train_set, processing_class=tokenizer, compute_loss_func=loss)
    trainer.remove_callback(PrinterCallback)
    return trainer


def main():
    """Train with both losses; return for each the recall of all classes and of the three rarest."""
    texts = sorted((sentences(module) for module in MODULES), key=len, reverse=True)
    pairs = [(text, label) for label, of_module in enumerate(texts) for text in of_module]
    train, test = train_test_split(pairs, test_size=0.3, stratify=[label for _, label in pairs], random_state=0)
    tokenizer = make_tokenizer([text for text, _ in train])
    train_set, test_set = (tokenized(tokenizer, part) for part in (train, test))
    counts = class_counts([label for _, label in train])
    print("sentences per class", *counts)

    results = {}
    for name, loss in {"plain": None, "class-balanced": class_balanced(counts)}.items():
        with TemporaryDirectory() as folder:
            trainer = make_trainer(folder, tokenizer, train_set, loss)
            trainer.train()
            predicted = trainer.predict(test_set)
        recall = recall_score(predicted.label_ids, predicted.predictions.argmax(1), average=None)
        results[name] = recall.mean(), recall[-3:].mean()
        print(f"{name:15} balanced accuracy {recall.mean():.3f}   three rarest classes {recall[-3:].mean():.3f}")
    return results


if __name__ == "__main__":
    main()
