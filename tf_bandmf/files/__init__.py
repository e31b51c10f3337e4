"""Files: configurations with arrays, and private files that contain secrets."""
