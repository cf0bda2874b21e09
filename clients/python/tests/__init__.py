"""Tests of the Python client: `python3 -m unittest discover` in `clients/python`."""
