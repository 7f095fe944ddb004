"""One agent's standing in the job: its lease, its records, its candidacy, and the news of plans."""
