"""Tables and figures, made only from run folders."""
