"""The grant table as Lua scripts, with the encoding of their arguments and replies."""
