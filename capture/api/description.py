"""API description: completes the OpenAPI document with tokens and with the shape of errors."""

from collections.abc import Collection
from typing import Any

from fastapi import FastAPI

#: FastAPI describes its own answer to an invalid request, which ours replaces
_REPLACED = ("HTTPValidationError", "ValidationError")
_ERROR = {
    "title": "Error",
    "type": "object",
    "properties": {
        "error_code": {"type": "string", "description": "the error's name, the same in every version"},
        "error_msg": {"type": "string", "description": "one line with cause and cure"},
    },
    "required": ["error_code", "error_msg"],
}
_ANY_ERROR = {
    "description": "400: the caller can correct it; 401, 403: no token, or another role is needed; 404, 409: ids; "
    "503: try again; 500: a fault of the server",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
}


def describe(app: FastAPI, *, open_paths: Collection[str]) -> None:
    """``open_paths``: those that need no token."""
    plain = app.openapi

    def described() -> dict[str, Any]:
        schema = plain()
        components = schema.setdefault("components", {})
        components.setdefault("securitySchemes", {})["token"] = {"type": "http", "scheme": "bearer"}
        shapes = components.setdefault("schemas", {})
        shapes["Error"] = _ERROR
        for name in _REPLACED:
            shapes.pop(name, None)
        schema["security"] = [{"token": []}]
        for path, operations in schema["paths"].items():
            for operation in operations.values():
                operation["responses"].pop("422", None)
                operation["responses"]["default"] = _ANY_ERROR
                if path in open_paths:
                    operation["security"] = []
        return schema

    app.openapi = described  # type: ignore[method-assign]
