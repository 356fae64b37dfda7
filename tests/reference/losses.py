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


def softmax_focal(z, t, gamma):
    """Σ_k t_k (1 - p_k)^γ · -log p_k, p = softmax(z), and its gradient: dp_k/dz_j = p_k ([j = k] - p_j)."""
    p = np.exp(z) / np.exp(z).sum()
    value, gradient = 0.0, np.zeros_like(z)
    for k in range(len(z)):
        rest = np.delete(p, k).sum()  # 1 - p_k
        value -= t[k] * rest**gamma * np.log(p[k])
        by_p = gamma * rest ** (gamma - 1) * np.log(p[k]) - rest**gamma / p[k]
        gradient += t[k] * by_p * p[k] * (np.eye(len(z))[k] - p)
    return value, gradient


def logit_adjusted(z, t, counts, tau):
    """The softmax loss of z + τ log π (Menon et al., equation 10), and its gradient."""
    return softmax(z + tau * np.log(counts / counts.sum()), t)


def ldam(z, t, counts, max_margin, scale):
    """Σ_k t_k of the softmax loss of s (z - Δ_k e_k) for class k (Cao et al., equation 13), and its gradient."""
    margins = counts**-0.25 * max_margin / (counts**-0.25).max()
    value, gradient = 0.0, np.zeros_like(z)
    for k, one_hot in enumerate(np.eye(len(z))):
        loss, slope = softmax(scale * (z - margins[k] * one_hot), one_hot)
        value, gradient = value + t[k] * loss, gradient + t[k] * scale * slope
    return value, gradient


def asymmetric(z, t, gamma_negative, gamma_positive, clip):
    """Σ_i t_i L+ + (1 - t_i) L- (Ridnik et al., equations 4 to 7) and its gradient: dp/dz = p (1 - p)."""
    value, gradient = 0.0, np.zeros_like(z)
    for i, p in enumerate(1 / (1 + np.exp(-z))):
        value -= t[i] * (1 - p) ** gamma_positive * np.log(p)
        slope = gamma_positive * (1 - p) ** (gamma_positive - 1) * np.log(p) - (1 - p) ** gamma_positive / p
        gradient[i] += t[i] * slope * p * (1 - p)
        shifted = max(p - clip, 0.0)
        if shifted > 0:
            value -= (1 - t[i]) * shifted**gamma_negative * np.log(1 - shifted)
            slope = shifted**gamma_negative / (1 - shifted)
            slope -= gamma_negative * shifted ** (gamma_negative - 1) * np.log(1 - shifted)
            gradient[i] += (1 - t[i]) * slope * p * (1 - p)
    return value, gradient


def vector_scaling(z, t, counts, gamma_scaling, tau, max_margin):
    """Σ_k t_k of the softmax loss of Δz + ι (Kini et al.), less LDAM's margin for class k, and its gradient."""
    factors, offsets = (counts / counts.max()) ** gamma_scaling, tau * np.log(counts / counts.sum())
    margins = counts**-0.25 * max_margin / (counts**-0.25).max()
    value, gradient = 0.0, np.zeros_like(z)
    for k, one_hot in enumerate(np.eye(len(z))):
        loss, slope = softmax(factors * z + offsets - margins[k] * one_hot, one_hot)
        value, gradient = value + t[k] * loss, gradient + t[k] * factors * slope
    return value, gradient


def weighted_loss(name, logits, target, weight=None, smoothing=0.0, ignore=-100, reduction="mean", **options):
    """Loss and gradient of logits (N, C) for class indices (N) or targets (N, C), sample by sample.

    ``name`` is that of a function above: the loss of one sample with target vector t, and its gradient.
    """
    loss_of_sample = globals()[name]
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
        value, gradient = loss_of_sample(z, (1 - smoothing) * t + smoothing / c, **options)
        rows[i], gradients[i] = alphas[i] * value, alphas[i] * gradient
    divisor = {"mean": counted, "weighted_mean": alphas.sum(), "sum": 1, "none": 1}[reduction] or 1
    return (rows if reduction == "none" else rows.sum() / divisor), gradients / divisor
