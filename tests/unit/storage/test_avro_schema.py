"""Schemas of Avro: what their JSON says, what is refused, and what the codec is given in their place."""

from __future__ import annotations

import json
from typing import Any

import fastavro
import pytest

from holdfast.storage.kafka.avro import BadSchema, Type, codec_schema, parsed


def of(schema: Any, *references: Any) -> Type:
    return parsed(json.dumps(schema), [json.dumps(each) for each in references])


def record(*fields: tuple[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": n, "type": t} for n, t in fields], **more}


class TestNames:
    def test_are_those_of_the_namespace_or_full(self) -> None:
        color = {"type": "enum", "name": "Color", "symbols": ["RED"]}
        found = of(record(("a", color), ("b", "Color"), ("c", "x.Color"), namespace="x"))
        assert found.name == "x.R" and {kind.name for _, kind in found.fields} == {"x.Color"}

    def test_a_dotted_name_determines_its_namespace(self) -> None:
        inner = {"type": "fixed", "name": "y.Hash", "size": 4, "namespace": "ignored"}
        assert of(record(("a", inner), ("b", "y.Hash"))).fields[1][1] == Type("fixed", name="y.Hash", size=4)

    def test_may_be_defined_by_other_schemas(self) -> None:
        money = {"type": "record", "name": "x.Money", "fields": [{"name": "cents", "type": "long"}]}
        price = {"type": "record", "name": "x.Price", "fields": [{"name": "of", "type": "x.Money"}]}
        found = of(record(("price", "x.Price"), ("plain", "x.Money")), money, price)
        assert found.fields[0][1].fields == (("of", found.fields[1][1]),)


class TestLogicalTypes:
    @pytest.mark.parametrize(
        ("given", "logical"),
        [
            ({"type": "long", "logicalType": "timestamp-micros"}, "timestamp-micros"),
            ({"type": "int", "logicalType": "timestamp-micros"}, None),
            ({"type": "long", "logicalType": "of-our-house"}, None),
            ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, "decimal"),
            ({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 4}, None),
            ({"type": "bytes", "logicalType": "decimal"}, None),
            ({"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}, "uuid"),
            ({"type": "fixed", "name": "U", "size": 15, "logicalType": "uuid"}, None),
            ({"type": {"type": "string"}, "logicalType": "uuid"}, "uuid"),
        ],
    )
    def test_invalid_logical_types_are_ignored(self, given: Any, logical: str | None) -> None:
        assert of(given).logical == logical


class TestRefused:
    @pytest.mark.parametrize(
        ("schema", "why"),
        [
            ({"type": "record", "name": "R"}, "fields of 'R'"),
            (record(("a", "Missing")), "uses the type 'Missing', which it does not define"),
            (record(("a", ["null", "R"])), "'R' contains itself"),
            (record(("a", {"type": "array", "items": "null"})), "takes no bytes"),
            (record(("a", {"type": "array", "items": {"type": "record", "name": "E", "fields": []}})), "no bytes"),
            (record(("a", "int"), ("a", "int")), "has it twice: 'a'"),
            (record(("a b", "int")), "no valid name for a field"),
            (record(("a", {"type": "enum", "name": "E", "symbols": "A"})), "symbols of 'E'"),
            (record(("a", {"type": "fixed", "name": "F", "size": -1})), "size of 'F' is -1"),
            (record(("a", {"type": "array"})), "lacks 'items'"),
            (record(("a", {"type": "fixed", "name": "R", "size": 1})), "defines the type 'R' twice"),
            (record(("a", [])), "a union is empty"),
            (record(("a", [["null"], "int"])), "contains a union"),
            (record(("a", {"logicalType": "date"})), "is not a type"),
            (7, "7 is not a type"),
        ],
    )
    def test_with_the_reason(self, schema: Any, why: str) -> None:
        with pytest.raises(BadSchema, match=why):
            of(schema)

    def test_is_a_text_that_is_not_json_and_one_that_is_nested_deeply(self) -> None:
        with pytest.raises(BadSchema, match="not JSON"):
            parsed("record R")
        nested: Any = "int"
        for _ in range(70):
            nested = {"type": "array", "items": nested}
        with pytest.raises(BadSchema, match="more than 64 types deep"):
            of(nested)


class TestCodecSchema:
    def test_has_integers_bytes_and_text_only(self) -> None:
        color = {"type": "enum", "name": "Color", "symbols": ["RED"]}
        found = codec_schema(
            of(
                record(
                    ("at", {"type": "long", "logicalType": "timestamp-micros"}),
                    ("color", ["null", color]),
                    ("again", {"type": "map", "values": "Color"}),
                    ("sure", "boolean"),
                    ("share", {"type": "array", "items": "double"}),
                    ("text", "string"),
                    ("other", "string"),
                )
            ),
            ["at", "text"],
        )
        fastavro.parse_schema(found)
        assert isinstance(found, dict)
        assert [each["type"] for each in found["fields"]] == [
            "long",
            ["null", "long"],
            {"type": "map", "values": "long"},
            {"type": "fixed", "name": "f1", "size": 1},
            {"type": "array", "items": {"type": "fixed", "name": "f2", "size": 8}},
            "string",
            "bytes",
        ]
