# Databricks notebook source
# MAGIC %md
# MAGIC # Exactly once, from Kafka to Kafka
# MAGIC
# MAGIC Copies one topic to another with an upper-case value, and shows what each batch did. Run it
# MAGIC again, or stop it in the middle and run it again: every record is written once. Databricks
# MAGIC includes Spark's Kafka source. Driver and workers must both reach the brokers, and both
# MAGIC topics must exist.

# COMMAND ----------

# MAGIC %pip install /Volumes/main/default/wheels/spark_eos-0.1.0-py3-none-any.whl

# COMMAND ----------

dbutils.library.restartPython()

# COMMAND ----------

dbutils.widgets.text("bootstrap_servers", "localhost:9092", "Kafka brokers")
dbutils.widgets.text("source", "orders", "Source topic")
dbutils.widgets.text("target", "orders-enriched", "Target topic")
dbutils.widgets.text("group_id", "order-processors", "Consumer group, used by nobody else")
dbutils.widgets.text("checkpoint", "/Volumes/main/default/checkpoints/orders", "Checkpoint")
dbutils.widgets.text("records_per_batch", "100000", "Records per batch")

# COMMAND ----------

# MAGIC %md
# MAGIC ## The query
# MAGIC
# MAGIC Each batch's report is written to a file beside the checkpoint, because with Spark Connect,
# MAGIC batches run in a different process than this notebook.

# COMMAND ----------

import json
from pathlib import Path

from pyspark.sql import functions as F

from spark_eos import ExactlyOnceSink

checkpoint = dbutils.widgets.get("checkpoint")
reports_path = f"{checkpoint}-reports"
dbutils.fs.mkdirs(reports_path)


def keep_report(report):
    file = Path(reports_path, f"{report.query_id}-{report.batch_id}.json")
    file.write_text(json.dumps(report.fields()))


sink = ExactlyOnceSink(
    kafka={"bootstrap.servers": dbutils.widgets.get("bootstrap_servers")},
    group_id=dbutils.widgets.get("group_id"),
    topic=dbutils.widgets.get("target"),
    checkpoint_location=checkpoint,
    on_batch=keep_report,
)
orders = sink.read(
    spark,
    subscribe=dbutils.widgets.get("source"),
    options={"maxOffsetsPerTrigger": dbutils.widgets.get("records_per_batch")},
)
enriched = orders.select("source", "key", F.upper(F.col("value").cast("string")).alias("value"))
query = sink.write(enriched).trigger(availableNow=True).start()
query.awaitTermination()

# COMMAND ----------

# MAGIC %md
# MAGIC ## What the query did
# MAGIC
# MAGIC The sink's reports are joined with Spark's progress for this run. `lag` is the number of
# MAGIC available records that had not been read yet; Spark remembers it for about the last 100
# MAGIC batches.

# COMMAND ----------

from spark_eos.observability.listener import source_lag

reports = spark.read.schema(
    "query_run string, batch_id long, rows_written long, rows_skipped long, transactions long, "
    "attempts long, total_ms double"
).json(reports_path)
lags = spark.createDataFrame(
    [(p.batchId, sum(source_lag(p).values())) for p in query.recentProgress],
    "batch_id long, lag long",
)
batches = (
    reports.where(F.col("query_run") == str(query.runId))
    .drop("query_run")
    .join(lags, "batch_id", "left")
    .orderBy("batch_id")
)
display(batches)

# COMMAND ----------

import matplotlib.pyplot as plt

rows = batches.collect()
numbers = [row.batch_id for row in rows]
figure, written = plt.subplots(figsize=(10, 4))
written.bar(numbers, [row.rows_written for row in rows], color="tab:blue")
written.set(xlabel="batch", ylabel="rows written", title="Rows and lag by batch")
lag = written.twinx()
lag.plot(numbers, [row.lag for row in rows], color="tab:orange", marker="o")
lag.set(ylabel="lag", ylim=(0, None))
for axis in (written.xaxis, written.yaxis, lag.yaxis):
    axis.get_major_locator().set_params(integer=True)
display(figure)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Cleaning up
# MAGIC
# MAGIC The checkpoint stays, so that the next run continues where this one stopped. Without it, the
# MAGIC query would continue from the group's offsets in Kafka, and still write each record once.

# COMMAND ----------

query.stop()
sink.close()
plt.close(figure)
dbutils.fs.rm(reports_path, True)
dbutils.widgets.removeAll()
