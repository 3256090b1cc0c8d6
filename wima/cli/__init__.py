"""The command line and its terminal output."""
