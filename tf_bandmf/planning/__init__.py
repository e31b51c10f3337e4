"""Plans for a budget: noise, choice of a mechanism, comparison tables, statements."""
