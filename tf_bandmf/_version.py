"""The version of the package, importable without TensorFlow."""

__version__ = "0.1.0.dev5"
