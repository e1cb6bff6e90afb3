"""The demonstration: the same orders, kills and losses for spark-eos and for Spark's own sink.

One concern per file: `orders` generates orders, `query` is the process that is killed, `process`
starts and kills it, `checkpoint` and `target` observe it from outside, `play` is the plot, `stage`
shows it on the terminal, `verdict` counts the result, `playbill` is the table at the end.
"""
