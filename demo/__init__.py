"""An example: many processes work on shared data, without Tenure and with it, in three stories.

`make demo` and `python -m demo` run it. The example uses Tenure as any program does, with `import tenure`, prints with
`rich`, and draws a page with the HTML of the console. Read `statistics.py` first: it shows how a program uses a lock
and its token. `coupons.py` uses a stock, `push.py` a job.
"""
