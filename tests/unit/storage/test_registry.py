"""The client of a schema registry, against one on a loopback port: answers, refusals, outages and secrets."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest
import registry_server
from registry_server import LOGIN, RegistryServer

from holdfast.errors import ConfigError, NotAdmitted, Unavailable
from holdfast.secrets import Secret
from holdfast.storage.kafka import registry as client
from holdfast.storage.kafka.registry import Registered, Registry, RegistryPlace

USER, _, PASSWORD = LOGIN.partition(":")


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with registry_server.running() as server:
        yield server


@pytest.fixture
def asked(server: RegistryServer) -> Registry:
    return Registry(RegistryPlace(server.url))


class TestSchemas:
    def test_are_found_by_id_and_by_subject(self, server: RegistryServer, asked: Registry) -> None:
        first, second = server.add("a/b value", '"int"'), server.add("a/b value", '"long"')
        assert asked.schema(first) == Registered('"int"') and asked.schema(second) == Registered('"long"')
        assert asked.newest("a/b value") == (second, Registered('"long"'))
        assert asked.subjects(first) == ("a/b value",)
        assert server.asked[2] == "GET /subjects/a%2Fb%20value/versions/latest"

    def test_missing_schemas_are_none(self, server: RegistryServer, asked: Registry) -> None:
        server.add("known", '"int"')
        assert asked.schema(7) is None and asked.newest("other") is None
        assert asked.registered("other", '"int"') is None and asked.registered("known", '"long"') is None

    def test_come_with_those_that_they_use_each_once_and_before_its_users(
        self, server: RegistryServer, asked: Registry
    ) -> None:
        used = {"name": "A", "subject": "a", "version": 1}
        server.add("a", '"A"')
        server.add("b", '"B"', references=[used])
        number = server.add("c", '"C"', references=[{"name": "B", "subject": "b", "version": 1}, used])
        assert asked.schema(number) == Registered('"C"', ('"A"', '"B"'))

    def test_schemas_of_another_kind_state_their_kind(self, server: RegistryServer, asked: Registry) -> None:
        number = server.add("a", "message A {}", schemaType="PROTOBUF")
        found = asked.schema(number)
        assert found is not None and found.kind == "PROTOBUF"

    def test_are_registered_once(self, server: RegistryServer, asked: Registry) -> None:
        number = asked.register("a", '"int"')
        assert asked.register("a", '"int"') == number == asked.registered("a", '"int"')

    def test_incompatible_schemas_are_refused_with_the_reason(self, server: RegistryServer, asked: Registry) -> None:
        server.refuses = "READER_FIELD_MISSING_DEFAULT_VALUE"
        with pytest.raises(ConfigError, match="READER_FIELD_MISSING_DEFAULT_VALUE") as caught:
            asked.register("a", '"int"')
        assert caught.value.not_done == "the schema was not registered"


class TestOutages:
    def test_end_when_it_answers_again(
        self, server: RegistryServer, asked: Registry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(client, "AWAY_S", 0.0)
        number = server.add("a", '"int"')
        server.stop()
        with pytest.raises(Unavailable, match=f"schema registry {server.url} is unreachable: .*refused"):
            asked.schema(number)
        server.start()
        assert asked.schema(number) == Registered('"int"')

    def test_are_not_asked_about_again_at_once(self, server: RegistryServer, asked: Registry) -> None:
        server.stop()
        with pytest.raises(Unavailable, match="refused"):
            asked.schema(1)
        server.start()
        with pytest.raises(Unavailable, match="refused"):
            asked.schema(1)
        assert not server.asked

    @pytest.mark.parametrize(
        ("status", "body", "why"),
        [
            (500, b'{"error_code": 50001, "message": "store"}', "HTTP 500 store"),
            (404, b"<html>no such page</html>", "HTTP 404"),
            (404, b'{"error_code": 404, "message": "HTTP 404 Not Found"}', "HTTP 404"),
            (301, b"", "HTTP 301"),
            (200, b"<html>welcome</html>", "not JSON"),
            (200, b"[1]", "has no 'schema'"),
            (200, b'{"schema": 7}', "has no 'schema'"),
        ],
    )
    def test_are_all_answers_that_are_not_those_of_a_registry(
        self, server: RegistryServer, asked: Registry, status: int, body: bytes, why: str
    ) -> None:
        server.broken = (status, body)
        with pytest.raises(Unavailable, match=why):
            asked.schema(1)

    def test_are_answers_that_are_too_long(
        self, server: RegistryServer, asked: Registry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(client, "ANSWER_BYTES_MAX", 10)
        server.broken = (200, b'"' + b"a" * 10 + b'"')
        with pytest.raises(Unavailable, match="longer than 10 bytes"):
            asked.schema(1)

    def test_are_references_that_the_registry_lacks(self, server: RegistryServer, asked: Registry) -> None:
        number = server.add("a", '"A"', references=[{"name": "B", "subject": "b", "version": 3}])
        with pytest.raises(Unavailable, match="lacks version 3 of 'b'"):
            asked.schema(number)


class TestLogins:
    def test_are_read_with_each_request_and_never_shown(
        self, server: RegistryServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server.login = LOGIN
        place = RegistryPlace(server.url, USER, Secret("env:REGISTRY_PASSWORD"))
        asked = Registry(place)
        number = server.add("a", '"int"')
        monkeypatch.setenv("REGISTRY_PASSWORD", "another-password")
        with pytest.raises(NotAdmitted, match="HTTP 401") as caught:
            asked.schema(number)
        monkeypatch.setenv("REGISTRY_PASSWORD", PASSWORD)
        assert asked.schema(number) == Registered('"int"')
        server.broken = (500, f'{{"message": "login {PASSWORD} failed"}}'.encode())
        with pytest.raises(Unavailable, match=r"login \*\*\* failed") as away:
            asked.schema(number)
        shown = f"{place!r} {pickle.dumps(place)!r} {caught.value} {away.value}"
        assert PASSWORD not in shown and "another-password" not in shown

    def test_the_error_for_missing_login_variables_names_the_variable(
        self, server: RegistryServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("REGISTRY_PASSWORD", raising=False)
        asked = Registry(RegistryPlace(server.url, USER, Secret("env:REGISTRY_PASSWORD")))
        with pytest.raises(ConfigError, match="REGISTRY_PASSWORD"):
            asked.schema(1)
        assert not server.asked
