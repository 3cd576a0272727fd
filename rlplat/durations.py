"""How long something took, for people."""

from __future__ import annotations


def duration_text(seconds: float) -> str:
    """4.1s, 2m03s, 1h02m."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s"
