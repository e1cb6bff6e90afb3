"""A checkpoint's files as a mapping, for code that reads and writes them without Spark."""


class CheckpointTexts(dict[str, str]):
    location = "/checkpoints/a"

    def read(self, path: str) -> str | None:
        return self.get(path)

    def names(self, path: str) -> list[str]:
        below = [name.removeprefix(f"{path}/") for name in self if name.startswith(f"{path}/")]
        return sorted({name.partition("/")[0] for name in below})

    def write(self, path: str, text: str) -> None:
        self[f"{path}/part-0.txt"] = text

    def delete(self, path: str) -> None:
        for name in [name for name in self if name.startswith(f"{path}/")]:
            del self[name]

    def copy_file(self, source: str, target: str) -> None:
        self[target] = self[source]
