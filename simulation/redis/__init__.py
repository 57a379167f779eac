"""A simulated Redis: the shipped store and the shipped Lua, on servers that fail in virtual time.

The Lua is compiled by Lua 5.1, the version that is in Redis, and run by it or by LuaJIT: the package `lupa` has both.
"""
