"""Yardsticks made by an earlier version of wima: the same settings still give the same bytes."""
