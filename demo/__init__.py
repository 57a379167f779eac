"""An example: many processes count a web access log into one shared record, without a lock and with one.

`make demo` and `python -m demo` run it. The example uses Tenure as any program does, with `import tenure`, and prints
with `rich`. Read `worker.py` first: it shows how a program uses a lock and its token.
"""
