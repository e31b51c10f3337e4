"""Package setup; the metadata are in pyproject.toml."""

from setuptools import setup

setup()
