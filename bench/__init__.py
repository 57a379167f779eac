"""Benchmarks: the locks of Tenure, other locks and their floors, measured in one run.

The rule: no figure is compared with a figure of another run, because machines are noisy. All contenders of a comparison
are measured in turns (A B C A B C ...), and the result is the ratio within each round. A floor is the least work that
a lock of this kind needs.
"""
