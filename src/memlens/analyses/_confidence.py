"""Confidence intervals of figures that come from windows."""

from __future__ import annotations

CONFIDENCE = 0.95
_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


def student_quantile(degrees: int) -> float:
    """The 97.5 % quantile of Student's t: half of a 95 % interval, in standard errors.

    >>> student_quantile(1), round(student_quantile(10), 3), round(student_quantile(1000), 3)
    (12.706, 2.228, 1.962)
    """
    if degrees < 1:
        return float("inf")
    if degrees <= len(_QUANTILES):
        return _QUANTILES[degrees - 1]
    z = 1.959964
    # Cornish-Fisher: right to four digits from 10 degrees on.
    return (
        z
        + (z**3 + z) / (4 * degrees)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * degrees**3)
    )


def interval(value: float | None, error: float | None, windows: float) -> tuple[float | None, float | None]:
    """(low, high) of a figure that cannot be negative; (None, None) where there is no error to go by.

    >>> interval(0.5, 0.01, 1)
    (None, None)
    >>> [round(v, 3) for v in interval(0.5, 0.01, 11)]
    [0.478, 0.522]
    """
    if value is None or error is None or windows < 2:
        return None, None
    reach = student_quantile(int(windows) - 1) * error
    return max(0.0, value - reach), value + reach
