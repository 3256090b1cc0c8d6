"""The window average where people train; each module needs the package that it is named after."""
