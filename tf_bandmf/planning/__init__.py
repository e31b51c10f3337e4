"""Plans for a budget: its noise, the choice of a mechanism, tables, the plan itself."""
