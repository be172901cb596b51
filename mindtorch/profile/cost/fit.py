"""Factors of a model of time, fitted to measurements: least squares of the relative error, by Levenberg and Marquardt.

What counts is predicted / measured - 1, whose mean is what docs/ACCURACY.md tells. Far outliers count by their
distance, not its square (a smooth L1: sqrt(1 + r^2)), as timings of single kernels have a few. Each factor is held by a
weak spring to where it begins, so that one that the measurements say nothing of stays there and can still be explained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

#: Errors beyond this count linearly; strength of the springs, by the root of the number of rows.
_KNEE, _SPRING = 0.1, 0.01
#: The farthest that a prediction is told to be off, as the logarithm: a number that can still be squared.
_FAR = 5.0

Predict = Callable[[Mapping[str, float]], Any]


def fit(
    predict: Predict, seconds: Any, start: Mapping[str, tuple[float, float]], rounds: int = 30, spring: float = _SPRING
) -> dict[str, float]:
    """Factors for which ``predict(factors)`` comes near the measured `seconds`. start: {factor: (value, freedom)}."""
    names = list(start)
    begin = np.log([start[name][0] for name in names])
    freedom = np.array([start[name][1] for name in names])
    measured = np.log(np.asarray(seconds, float))
    hold = spring * np.sqrt(len(measured)) / freedom

    def errors(x: Any) -> Any:
        found = np.log(predict(dict(zip(names, np.exp(x).tolist(), strict=True))))
        return np.concatenate([np.expm1(np.minimum(found - measured, _FAR)), hold * (x - begin)])

    x = _descend(errors, begin.copy(), rounds)
    return dict(zip(names, np.exp(x).tolist(), strict=True))


def _descend(errors: Callable[[Any], Any], x: Any, rounds: int) -> Any:
    damping, step = 1e-2, 0.02
    error = errors(x)
    loss = _loss(error)
    for _ in range(rounds):
        slope = np.stack([(errors(x + step * unit) - error) / step for unit in np.eye(len(x))], 1)
        weight = 1 / np.sqrt(1 + (error / _KNEE) ** 2)
        square, toward = slope.T @ (weight[:, None] * slope), slope.T @ (weight * error)
        for _ in range(6):
            by = -np.linalg.solve(square + damping * np.diag(np.diag(square) + 1e-3), toward)
            tried = x + np.clip(by, -0.7, 0.7)
            found = errors(tried)
            if _loss(found) < loss:
                break
            damping *= 4
        else:
            return x
        gain = (loss - _loss(found)) / loss
        x, error, loss, damping = tried, found, _loss(found), max(damping / 5, 1e-5)
        if gain < 1e-4:
            return x
    return x


def _loss(error: Any) -> float:
    return float((np.sqrt(1 + (error / _KNEE) ** 2) - 1).sum())
