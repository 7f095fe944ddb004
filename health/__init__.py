"""Is it well: verdicts on members, metrics, and the pages that show them."""
