"""What is known of a Spark job that has failed in a Python function."""

import pytest
from pyspark.errors import PythonException

from spark_eos._spark.failed_job import as_own_error


@pytest.mark.parametrize(
    ("text", "beginning"),
    [
        (
            "...\nspark_eos.errors.RegistryError: nobody answers",
            "nobody answers [more: spark-eos explain EOS29]",
        ),
        (
            "ModuleNotFoundError: No module named 'spark_eos'",
            "the Python of Spark's executors has no module 'spark_eos':",
        ),
    ],
)
def test_an_error_of_ours_is_told(text: str, beginning: str) -> None:
    assert str(as_own_error(PythonException(text))).startswith(beginning)
