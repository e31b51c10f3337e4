"""What a resumed run needs: its private file, and what must be equal."""
