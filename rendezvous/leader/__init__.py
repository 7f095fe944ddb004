"""What only the elected agent does: watch the members, decide on plans, publish them."""
