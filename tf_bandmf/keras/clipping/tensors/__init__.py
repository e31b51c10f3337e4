"""Batches, groups and variables: shapes of what is clipped."""
