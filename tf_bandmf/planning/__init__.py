"""Plans for a privacy budget: noise, choice of mechanism, comparison tables, statements."""
