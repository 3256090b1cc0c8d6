"""The rounds at its end that a run is judged by."""

LAST = 100  # as in the paper


def last_rounds(rounds: int) -> int:
    """How many rounds at its end a run is judged by: 100, but of a short run its last quarter.

    What a model gains while training starts up says nothing about the model that is served.
    """
    return max(1, min(LAST, rounds // 4))
