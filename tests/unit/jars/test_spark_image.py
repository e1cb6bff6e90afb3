"""Options of a driver's JVM."""

from spark_eos._jars.spark_image import quoted


def test_an_option_with_a_space_stays_one() -> None:
    options = quoted(["-Xmx1g", "-XX:SharedArchiveFile=/my cache/classes.jsa"])
    assert options == '"-Xmx1g" "-XX:SharedArchiveFile=/my cache/classes.jsa"'
