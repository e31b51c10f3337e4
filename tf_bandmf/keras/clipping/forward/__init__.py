"""The forward pass, which records layer calls, and refuses models that mix examples."""
