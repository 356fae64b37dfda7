"""Losses and gradients as the paper writes them. For moderate logits only: nothing is rearranged to be stable."""

import numpy as np


def softmax_terms(z, k):
    """CE_softmax(z, k) and its gradient, for one sample and class k."""
    p = np.exp(z) / np.exp(z).sum()
    return -np.log(p[k]), p - np.eye(len(z))[k]


def focal_terms(z, k, gamma):
    """FL(z, k) and its gradient, for one sample and class k (Lin et al., appendix B)."""
    sign = np.where(np.arange(len(z)) == k, 1.0, -1.0)
    p = 1 / (1 + np.exp(-sign * z))
    loss = -((1 - p) ** gamma) * np.log(p)
    return loss.sum(), sign * (1 - p) ** gamma * (gamma * p * np.log(p) + p - 1)


def soft_terms(loss, z, t):
    """The loss of a target vector: one that sums to 1 is a mixture of labels, any other is taken class by class."""
    if loss["name"] == "softmax":
        parts = [softmax_terms(z, k) for k in range(len(z))]
        return sum(t[k] * v for k, (v, _) in enumerate(parts)), sum(t[k] * g for k, (_, g) in enumerate(parts))
    value, gradient = 0.0, np.zeros_like(z)
    for i in range(len(z)):
        p = 1 / (1 + np.exp(-z[i]))
        gamma = loss["gamma"]
        value -= t[i] * (1 - p) ** gamma * np.log(p) + (1 - t[i]) * p**gamma * np.log(1 - p)
        gradient[i] += t[i] * (1 - p) ** gamma * (gamma * p * np.log(p) + p - 1)
        gradient[i] -= (1 - t[i]) * p**gamma * (gamma * (1 - p) * np.log(1 - p) - p)
    return value, gradient


def weighted_loss(name, logits, target, weight=None, gamma=0.0, smoothing=0.0, ignore=-100, reduction="mean"):
    """Loss and gradient of logits (N, C) for class indices (N) or targets (N, C), sample by sample."""
    n, c = logits.shape
    weight = np.ones(c) if weight is None else weight
    rows, gradients, alphas, counted = [], [], [], 0
    for z, y in zip(logits, target, strict=True):
        if np.ndim(y) == 0 and y == ignore:
            rows.append(0.0), gradients.append(np.zeros(c)), alphas.append(0.0)
            continue
        counted += 1
        t = np.eye(c)[y] if np.ndim(y) == 0 else np.asarray(y, np.float64)
        alpha = (t * weight).sum() / t.sum() if t.sum() > 0 else 1.0
        t = (1 - smoothing) * t + smoothing / c
        value, gradient = soft_terms({"name": name, "gamma": gamma}, z, t)
        rows.append(alpha * value), gradients.append(alpha * gradient), alphas.append(alpha)
    rows, gradients = np.array(rows), np.array(gradients).reshape(n, c)
    divisor = {"mean": counted, "weighted_mean": sum(alphas), "sum": 1, "none": 1}[reduction] or 1
    return (rows if reduction == "none" else rows.sum() / divisor), gradients / divisor
