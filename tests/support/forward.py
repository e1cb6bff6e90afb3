"""Forwards a port until it is killed; its arguments are ADDRESS, TARGET and PORT."""

import asyncio
import sys
from asyncio import StreamReader, StreamWriter
from contextlib import suppress
from functools import partial


async def _copy(source: StreamReader, target: StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await source.read(1 << 16):
            target.write(data)
            await target.drain()
    target.close()


async def _serve(host: str, port: int, reader: StreamReader, writer: StreamWriter) -> None:
    try:
        there, back = await asyncio.open_connection(host, port)
    except OSError:
        writer.close()
        return
    await asyncio.gather(_copy(reader, back), _copy(there, writer))


async def _forward(address: str, target: str, port: int) -> None:
    server = await asyncio.start_server(partial(_serve, target, port), address, port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_forward(sys.argv[1], sys.argv[2], int(sys.argv[3])))
