"""The package's version, in a module that does not import TensorFlow."""

__version__ = "0.1.0.dev5"
