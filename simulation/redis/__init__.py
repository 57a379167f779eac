"""A simulated Redis: the shipped store and the shipped Lua, on servers that fail in virtual time.

Lua 5.1, the version in Redis, compiles the Lua; Lua 5.1 or LuaJIT runs it. The package `lupa` contains both.
"""
