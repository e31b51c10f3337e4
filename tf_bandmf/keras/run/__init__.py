"""One private run: who may step, with which secrets, from which weights."""
