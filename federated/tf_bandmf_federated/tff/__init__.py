"""Federated averaging with correlated noise in TensorFlow Federated 0.87."""
