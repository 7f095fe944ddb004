"""How an agent and its workers speak: JSON lines over a Unix socket, and the lifeline that tells of a death."""
