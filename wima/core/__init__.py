"""What every room needs: errors, checks of arguments, randomness, the machine, the flat vector."""
