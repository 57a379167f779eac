"""A simulated Redis: the shipped store and the shipped Lua, on servers that fail in virtual time.

The Lua is run by Lua 5.1, the version that is in Redis; the package `lupa` brings it.
"""
