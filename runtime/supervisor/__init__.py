"""Starts, watches and stops the workers of one host, and decides on restarts."""
