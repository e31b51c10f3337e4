"""Plans of private runs: noise for a budget, mechanisms, and privacy statements."""
