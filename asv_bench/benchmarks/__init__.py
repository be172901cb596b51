"""Benchmarks of the hot paths, each beside torch in the same run; the rows are SPEC's S1-S7.

Without asv, one table: ``python asv_bench/report.py``. With it, from ``asv_bench/``::

    asv machine --yes
    asv run -E existing --show-stderr --launch-method forkserver --set-commit-hash $(git rev-parse HEAD)

Hosted machines vary 0.6-1.5x, so follow the ratios (``track_``) and gate on counts, not on microseconds.
"""
