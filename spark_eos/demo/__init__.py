"""The demonstration: the same orders, kills and losses for spark-eos and for Spark's own sink.

One concern per file: `orders` makes them, `query` is the process that is killed, `process` starts
and kills it, `checkpoint` and `target` observe from outside, `play` is the plot, `stage` what the
terminal shows of it, `verdict` what it comes to.
"""
