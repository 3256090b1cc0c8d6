"""`wima compare`: methods side by side over seeds."""
