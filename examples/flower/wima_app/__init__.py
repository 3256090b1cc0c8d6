"""A Flower app whose two halves come from wima."""
