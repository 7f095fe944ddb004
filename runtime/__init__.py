"""The training side (`job`, `groups`, `recovery`) and the agent that looks after it."""
