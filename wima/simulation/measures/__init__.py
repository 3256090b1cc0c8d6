"""What is measured on the models of a round, and about the round itself."""
