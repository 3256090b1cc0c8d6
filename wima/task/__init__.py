"""A task: data and a model, ready to train and to evaluate."""
