"""Builds the C runtime with the package; everything else is in pyproject.toml."""

from setuptools import setup

setup(cffi_modules=["core/abi/build.py:ffibuilder"])
