"""``spark-eos registry``."""

import click

from spark_eos._cli.serving import serve
from spark_eos.testing import EmbeddedSchemaRegistry


@click.command()
@click.option(
    "--port", type=click.IntRange(1, 65535), help="Port to listen on; by default a free one."
)
def registry(port: int | None) -> None:
    """Run a schema registry on 127.0.0.1 until Ctrl-C.

    It is Apicurio Registry, with the API of Confluent's. Prints its URL on stdout as soon as it is
    ready: clients need all of it, with its path. Removes its schemas when it stops.

    \b
    Example: spark-eos registry --port 8081
             curl http://127.0.0.1:8081/apis/ccompat/v7/subjects
    """  # noqa: D301 - click needs the character itself
    server = EmbeddedSchemaRegistry(port=port)
    serve(server, "The schema registry", lambda: server.url)
