"""The window average in training frameworks; each module needs the package it is named after."""
