"""From one generation to the next: compare, settle, heal, and the groups that a generation has.  See `PROTOCOL.md`."""
