"""Losses and gradients as the paper writes them. For moderate logits only: nothing is rearranged to be stable."""

import numpy as np


def softmax(z, t):
    """Σ_k t_k CE_softmax(z, k) and its gradient, for one sample with target vector t."""
    p = np.exp(z) / np.exp(z).sum()
    return -(t * np.log(p)).sum(), sum(t[k] * (p - np.eye(len(z))[k]) for k in range(len(z)))


def focal(z, t, gamma):
    """Σ_i t_i FL(z_i) + (1 - t_i) FL(-z_i) and its gradient (Lin et al., appendix B)."""
    value, gradient = 0.0, np.zeros_like(z)
    for sign, share in ((1, t), (-1, 1 - t)):
        p = 1 / (1 + np.exp(-sign * z))
        value -= (share * (1 - p) ** gamma * np.log(p)).sum()
        gradient += share * sign * (1 - p) ** gamma * (gamma * p * np.log(p) + p - 1)
    return value, gradient


def sigmoid(z, t):
    """Σ_i of the two-class cross-entropy of z_i, and its gradient."""
    p = 1 / (1 + np.exp(-z))
    return -(t * np.log(p) + (1 - t) * np.log(1 - p)).sum(), p - t


LOSSES = {"softmax": softmax, "sigmoid": sigmoid, "focal": focal}


def weighted_loss(name, logits, target, weight=None, smoothing=0.0, ignore=-100, reduction="mean", **options):
    """Loss and gradient of logits (N, C) for class indices (N) or targets (N, C), sample by sample."""
    n, c = logits.shape
    weight = np.ones(c) if weight is None else weight
    rows, gradients, alphas = np.zeros(n), np.zeros((n, c)), np.zeros(n)
    counted = 0
    for i, (z, y) in enumerate(zip(logits, target, strict=True)):
        if np.ndim(y) == 0 and y == ignore:
            continue
        counted += 1
        t = np.eye(c)[y] if np.ndim(y) == 0 else np.asarray(y, np.float64)
        alphas[i] = (t * weight).sum() / t.sum() if t.sum() > 0 else 1.0
        value, gradient = LOSSES[name](z, (1 - smoothing) * t + smoothing / c, **options)
        rows[i], gradients[i] = alphas[i] * value, alphas[i] * gradient
    divisor = {"mean": counted, "weighted_mean": alphas.sum(), "sum": 1, "none": 1}[reduction] or 1
    return (rows if reduction == "none" else rows.sum() / divisor), gradients / divisor
