"""What is shipped beside the code: examples, manifests, dashboards and rules (package data, no code that anything imports)."""
