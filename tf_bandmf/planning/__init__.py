"""From a budget to a plan: noise for it, choice of a mechanism, tables, the plan."""
