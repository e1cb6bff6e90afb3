"""Dead letters are parsed correctly whatever their source records' headers contain."""

from spark_eos.verify.headers import Letter, dead_letter


def test_the_last_explanation_counts() -> None:
    own = [("__connect.errors.topic", b"made up"), ("__connect.errors.reason", b"made up")]
    explanation = {
        "topic": b"orders",
        "reason": b"e",
        "partition": b"1",
        "offset": b"7",
        "group": b"enrich",
    }
    error_headers = [("__dlq.errors." + name, value) for name, value in explanation.items()]
    assert dead_letter(own + error_headers) == Letter(b"enrich", b"orders", b"orders:1:7")
    assert dead_letter(own) == Letter(b"", b"made up", None)
