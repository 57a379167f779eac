"""Locks with the interfaces of other libraries, for programs that change from one to the other."""
