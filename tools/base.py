from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, Protocol
import jsonschema
JsonValue = Any
Effect = Literal["none", "read", "write"]
Trust = Literal["trusted", "untrusted_content"]
TOOL_CODES = frozenset("bad_arguments file_not_found no_data ambiguous division_by_zero not_finite too_large unsupported rate_limited upstream bad_response configuration conflict".split())
@dataclass(frozen=True, slots=True)
class FieldFault:
    field: str
    kind: str
    message: str
class BadArguments(Exception):
    def __init__(self, faults): self.faults = tuple(faults)
class ToolError(Exception):
    def __init__(self, code, message, **details):
        self.code, self.message, self.details = code, message, details
@dataclass(frozen=True, slots=True)
class Note:
    id: str
    text: str
    created_at: str
class Notes(Protocol):
    def add(self, text: str, key: str) -> Note: ...
    def list(self) -> Sequence[Note]: ...
@dataclass(frozen=True, slots=True)
class ToolContext:
    clock: Any
    notes: Notes
    idempotency_key: str
    knowledge: Path
class Tool:
    @classmethod
    def from_json_schema(cls, *, name, description, parameters, function, effect="none", permission=None, trust="trusted", source="", host=None, preview=None, precondition=None):
        t = cls(); t.name=name; t.description=description; t.parameters={**parameters}; t.parameters.setdefault("additionalProperties", False); t.function=function; t.effect=effect; t.permission=permission or name; t.trust=trust; t.source=source; t.host=host; t.preview=preview or "Run."; t.precondition=precondition; t.phrases=()
        t.has_required = bool(parameters.get("required")); t.schema={"type":"function","function":{"name":name,"description":description,"parameters":t.parameters}}
        return t
    def validate(self, data):
        faults=[]
        for e in jsonschema.Draft202012Validator(self.parameters).iter_errors(data):
            if e.validator=="required":
                for r in e.validator_value:
                    if r not in data: faults.append(FieldFault(r,"missing","m"))
            elif e.validator=="additionalProperties":
                for r in data:
                    if r not in self.parameters.get("properties",{}): faults.append(FieldFault(r,"unknown_field","m"))
            else: faults.append(FieldFault(".".join(map(str,e.path)), "type","m"))
        if faults: raise BadArguments(faults)
        return data
    def run(self, a, ctx):
        return self.function({k: float(v) if isinstance(v, Decimal) else v for k,v in a.items()}, ctx)
