"""Resumes a run from its private state file."""
