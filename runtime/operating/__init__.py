"""The commands that show and operate a running job from outside: each a module of its own, hooked into `cli`."""
