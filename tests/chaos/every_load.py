"""All loads by name."""

from chaos.loads import LOADS, Load
from chaos.schema_load import WITH_SCHEMAS
from chaos.staged_loads import STAGED

EVERY_LOAD: dict[str, Load] = {**LOADS, **WITH_SCHEMAS, **STAGED}
