"""Private counts of examples, and private metrics of records."""
