"""An example: many processes count a web access log into one shared record, without a lock and with one.

`holdfast demo` and `python -m holdfast.demo` run it. It uses Holdfast as any program would, by `import holdfast`, and
prints by means of `rich`. Read `worker.py` first: it has all that a program needs to do to use a lock and its token.
"""
