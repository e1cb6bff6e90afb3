"""What is shown of the output of a failed download."""

from spark_eos._jars.ivy import _reasons


def test_a_java_that_does_not_start_is_quoted_without_options() -> None:
    lines = [
        "Picked up JAVA_TOOL_OPTIONS: -XX:+HeapDumpOnOutOfMemoryError -Dhttps.proxyPassword=s3cret",
        "Error occurred during initialization of VM",
        "Multiple garbage collectors selected",
    ]
    assert _reasons(lines).split("\n") == [f"  {line}" for line in lines[1:]]


def test_only_the_problems_of_a_long_output_are_shown() -> None:
    lines = [*(f"\tfound some#jar-{n};1.0 in maven" for n in range(99)), "\tServer access error"]
    assert _reasons(lines) == "  Server access error"
