"""Shared basics: errors, argument checks, randomness, machine resources, the flat vector."""
