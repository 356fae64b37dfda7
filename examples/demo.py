"""What the library does, on the counts of long-tailed CIFAR-10: counts → effective numbers → weights → a loss."""

import torch

from longtail import (
    ClassBalancedLoss,
    FocalLoss,
    class_weights,
    effective_number,
    imbalance_factor,
    long_tailed_counts,
)

CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
BETA = 0.999


def main() -> None:
    """Print the table and four loss values."""
    counts = long_tailed_counts(5000, len(CLASSES), imbalance=100)
    effective = effective_number(counts, BETA)
    weights = class_weights(counts, beta=BETA)
    inverse = class_weights(counts, scheme="inverse")

    print(f"Long-tailed CIFAR-10: {counts.sum():,} images, imbalance {imbalance_factor(counts):.0f}, β = {BETA}\n")
    print(f"{'class':<12}{'images':>8}{'effective':>11}{'weight':>9}{'at β = 1':>10}")
    for row in zip(CLASSES, counts, effective, weights, inverse, strict=True):
        print("{:<12}{:>8}{:>11.1f}{:>9.4f}{:>10.4f}".format(*row))

    logits = torch.zeros(2, len(CLASSES))
    logits[:, 0] = 2.0  # a network that has learnt to say "airplane"
    labels = torch.tensor([0, 9])
    plain = FocalLoss(gamma=0.5, reduction="none")(logits, labels)
    balanced = ClassBalancedLoss(counts, loss="focal", beta=BETA, gamma=0.5, reduction="none")(logits, labels)
    print("\nFocal loss of a network that always says airplane:")
    print(f"{'':<34}{'plain':>8}{'class-balanced':>16}")
    for name, *row in zip(
        ("an airplane, recognised", "a truck, mistaken for an airplane"), plain, balanced, strict=True
    ):
        print("{:<34}{:>8.2f}{:>16.2f}".format(name, *row))


if __name__ == "__main__":
    main()
