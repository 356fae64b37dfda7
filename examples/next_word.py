"""Next word over a Zipf-distributed vocabulary: a head of 5,500 classes, fused with its loss."""

import re
import sysconfig
from collections import Counter
from pathlib import Path

import torch
from torch import nn

from longtail import ClassBalancedLoss, FusedLinearLoss, SoftmaxCrossEntropy, class_counts

device = "cuda" if torch.cuda.is_available() else "cpu"
CONTEXT = 3
BANDS = {"1000 and more": 1000, "100 to 999": 100, "10 to 99": 10, "2 to 9": 2}


def windows():
    """Three words and the next one, in modules of Python's standard library; every tenth window is for testing."""
    paths = sorted(Path(sysconfig.get_path("stdlib")).glob("[a-d]*.py"))
    texts = [re.findall(r"[A-Za-z_]\w+", path.read_text(encoding="utf-8")) for path in paths]
    counts = Counter(word for text in texts for word in text)
    vocabulary = {word: index for index, (word, count) in enumerate(counts.most_common()) if count > 1}
    # -100, PyTorch's ignore_index, for words that occur only once.
    words = [torch.tensor([vocabulary.get(word, -100) for word in text]) for text in texts if len(text) > CONTEXT]
    found = torch.cat([text.unfold(0, CONTEXT + 1, 1) for text in words])
    test = torch.arange(len(found)) % 10 == 0
    return found[~test], found[test], len(vocabulary)


class NextWord(nn.Module):
    """Features of the words before; the head that predicts the next one is not in here."""

    def __init__(self, words, width=64):
        super().__init__()
        self.embedding = nn.Embedding(words + 1, width, padding_idx=words)
        self.mix = nn.Sequential(nn.Linear(CONTEXT * width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))

    def forward(self, context):
        """Features (N, 64) of contexts (N, 3)."""
        known = context.where(context >= 0, self.embedding.padding_idx)
        return self.mix(self.embedding(known).flatten(1))


def train(data, words, criterion, steps):
    """Train a network and a fused head: no step holds the 512 × 5,500 logits."""
    torch.manual_seed(0)
    network, head = NextWord(words).to(device), FusedLinearLoss(64, criterion, words).to(device)
    optimizer = torch.optim.AdamW([*network.parameters(), *head.parameters()], lr=4e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    for _ in range(steps):
        batch = data[torch.randint(len(data), (512,))].to(device)
        loss = head(network(batch[:, :CONTEXT]), batch[:, CONTEXT])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return network, head


@torch.no_grad()
def recall_by_band(network, head, data, counts):
    """Mean recall of the words of each frequency band; words that the test set does not have do not count."""
    hits, total = torch.zeros(len(counts)), torch.zeros(len(counts))
    for batch in data[data[:, CONTEXT] >= 0].split(2048):
        target = batch[:, CONTEXT]
        found = head.linear(network(batch[:, :CONTEXT].to(device))).argmax(1).cpu() == target
        total += torch.bincount(target, minlength=len(counts))
        hits += torch.bincount(target[found], minlength=len(counts))
    recall, bands, most = hits / total, {}, torch.inf
    for name, least in BANDS.items():
        inside = (counts >= least) & (counts < most) & (total > 0)
        bands[name], most = recall[inside].mean().item(), least
    return bands | {"all words": recall[total > 0].mean().item()}


def main(steps=300):
    """Train with both criteria; return for each the recall by frequency band."""
    data, test, words = windows()
    counts = class_counts(data[:, CONTEXT][data[:, CONTEXT] >= 0], words)
    criteria = {
        "plain": SoftmaxCrossEntropy(),
        "class-balanced": ClassBalancedLoss(counts, "softmax", beta=0.99, normalize="samples", absent="ignore"),
    }
    results = {}
    for name, criterion in criteria.items():
        results[name] = recall_by_band(*train(data, words, criterion, steps), test, counts)
        shown = "   ".join(f"{band} {recall:.3f}" for band, recall in results[name].items())
        print(f"{name:15} {shown}")
    return results


if __name__ == "__main__":
    main()
