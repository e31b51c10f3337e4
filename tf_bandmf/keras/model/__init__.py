"""The model that is trained privately, and its step."""
