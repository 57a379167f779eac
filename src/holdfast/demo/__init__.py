"""An example: many processes count a web access log into one shared record, without a lock and with one.

`holdfast demo` and `python -m holdfast.demo` run it. The example uses Holdfast as any program does, with
`import holdfast`, and prints with `rich`. Read `worker.py` first: it shows how a program uses a lock and its token.
"""
