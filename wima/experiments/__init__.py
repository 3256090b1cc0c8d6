"""The paper's experiments as data: their runs, their scales and the numbers that it reports."""
