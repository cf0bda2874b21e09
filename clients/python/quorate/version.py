"""The version, in one place; `pyproject.toml` has to say the same, and a test looks."""

VERSION = "0.1.0"
