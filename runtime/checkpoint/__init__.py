"""A job's state on disk: what is left when everybody is gone."""
