"""Any Flower app on our own processes."""
