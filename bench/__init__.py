"""Benchmarks: the locks of Holdfast beside their floors and beside other locks, in one run.

Machines are noisy, so no figure is compared with a constant or with one of another day: whatever is compared was
measured in turns (A B C A B C ...), and what counts is the ratio within each round.
"""
