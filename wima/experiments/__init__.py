"""The paper's experiments as data: what is run, at which scale, and what the paper reports."""
