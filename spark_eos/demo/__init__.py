"""The demonstration: the same orders, kills and losses for spark-eos and for Spark's own sink.

One concern per file: `orders` generates orders, `query` is the process that is killed, `counting`
what it counts, `process` starts and kills it, `checkpoint` and `target` observe it from outside,
`performance` is a query's life in an act, `play` is the first act, `counts` the second, `theatre`
what both need, `stage` shows them on the terminal, `verdict` counts the first act's result,
`playbill` has the tables at the end.
"""
