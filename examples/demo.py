"""What the library does, on the counts of long-tailed CIFAR-10: counts → effective numbers → weights → a loss."""

import torch

from longtail import ClassBalancedLoss, class_weights, effective_number, imbalance_factor, long_tailed_counts

CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
BETA = 0.999


def main() -> None:
    """Print the table and two loss values."""
    counts = long_tailed_counts(5000, len(CLASSES), imbalance=100)
    effective = effective_number(counts, BETA)
    weights = class_weights(counts, beta=BETA)
    inverse = class_weights(counts, scheme="inverse")

    print(f"Long-tailed CIFAR-10: {counts.sum():,} images, imbalance {imbalance_factor(counts):.0f}, β = {BETA}\n")
    print(f"{'class':<12}{'images':>8}{'effective':>11}{'weight':>9}{'1/n weight':>12}")
    for row in zip(CLASSES, counts, effective, weights, inverse, strict=True):
        print("{:<12}{:>8}{:>11.1f}{:>9.4f}{:>12.4f}".format(*row))

    logits = torch.zeros(2, len(CLASSES))
    logits[:, 0] = 2.0  # a network that has learnt to say "airplane"
    focal = ClassBalancedLoss(counts, loss="focal", beta=BETA, gamma=0.5, reduction="none")
    right, missed = focal(logits, torch.tensor([0, 9])).tolist()
    print("\nClass-balanced focal loss of a network that always says airplane:")
    print(f"  an airplane, recognised    {right:7.4f}")
    print(f"  a truck, taken for one     {missed:7.4f}   ({missed / right:.0f} times as much)")


if __name__ == "__main__":
    main()
