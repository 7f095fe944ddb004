"""What is shipped beside the code: examples, manifests, dashboards and rules.  Nothing imports it."""
