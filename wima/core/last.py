"""The last rounds of a run, over which its metrics are averaged."""

LAST = 100  # as in the paper


def last_rounds(rounds: int) -> int:
    """Number of final rounds that metrics are averaged over: 100, or the last quarter if shorter.

    Gains early in training say nothing about the final model.
    """
    return max(1, min(LAST, rounds // 4))
