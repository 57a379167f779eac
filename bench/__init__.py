"""Benchmarks: the locks of Holdfast beside their floors and beside other locks, in one run.

The rule: no figure is compared with a constant or with a figure of another day, for machines are noisy. All contenders
of a comparison are measured in turns (A B C A B C ...), and the result is the ratio within each round.
"""
