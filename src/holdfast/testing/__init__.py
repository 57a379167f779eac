"""For those who test a store of their own, or a program that takes locks."""
