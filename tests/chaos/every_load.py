"""All loads by name."""

from chaos.loads import LOADS, Load
from chaos.schema_load import WITH_SCHEMAS
from chaos.staged_loads import STAGED
from chaos.staged_schema_load import STAGED_SCHEMAS

EVERY_STAGED_LOAD: dict[str, Load] = {**STAGED, **STAGED_SCHEMAS}
EVERY_LOAD: dict[str, Load] = {**LOADS, **WITH_SCHEMAS, **EVERY_STAGED_LOAD}
