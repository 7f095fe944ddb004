"""The interruptible gloo communicator: built, used and ended at any moment."""
