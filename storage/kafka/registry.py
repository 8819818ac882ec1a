"""A schema registry: where it is, and the few questions that a job asks it.

A registry gives each schema an id that never changes its meaning. The REST interface is that of Confluent's registry,
which others (Redpanda, Karapace, Apicurio) have too.

Invariants
    - No value of this module holds a secret longer than a request; no message shows one.
    - Every request ends within `ANSWER_WITHIN_S` for the connection and as much for the answer, which is at most
      `ANSWER_BYTES_MAX` long. Redirections are not followed.
    - After a request that got no answer, nothing is asked for `AWAY_S`: other partitions are not kept waiting.
    - Whatever is no answer of a registry is `Unavailable`: a proxy, or a server that starts.

Source: docs.confluent.io, Schema Registry API; docs/decisions/0088-avro-values.md.
"""

from __future__ import annotations

import base64
import json
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from holdfast.errors import ConfigError, HoldfastError, NotAdmitted, Unavailable
from holdfast.extras import install
from holdfast.secrets import SHOWN, Secret

ANSWER_WITHIN_S = 3.0
AWAY_S = 1.0
ANSWER_BYTES_MAX = 8 << 20
REFERENCES_MAX = 200
"""Schemas that one schema may use, all levels together."""
NO_SUBJECT, NO_VERSION, NO_SCHEMA = 40401, 40402, 40403
_MISSING = (NO_SUBJECT, NO_VERSION, NO_SCHEMA)
_JSON = "application/vnd.schemaregistry.v1+json"
_OBJECT = re.compile(r"<[^<>]*>:? ?|[A-Za-z]*Connection\([^()]*\):? ?")
_MESSAGE_MAX = 300
UNKNOWN_NEXT = "check that registry= names the registry which the producers of this topic use"


@dataclass(frozen=True)
class RegistryPlace:
    """A registry.

    Args:
        url: Without a user or a password.
        user: With `password`, for HTTP's basic authentication.
        ca: A file with the certificates of the authorities that sign the server's; None: those of the system.
    """

    url: str
    user: str | None = None
    password: Secret | None = None
    ca: str | None = None

    @property
    def where(self) -> str:
        """How messages name it."""
        return f"the schema registry {self.url}"

    @property
    def secrets(self) -> tuple[Secret, ...]:
        """The secrets that it needs."""
        return () if self.password is None else (self.password,)


@dataclass(frozen=True)
class Registered:
    """A schema as a registry has it.

    Args:
        text: The schema.
        references: The schemas that define names which it uses, each after those that it uses itself.
        kind: "AVRO", "PROTOBUF" or "JSON".
    """

    text: str
    references: tuple[str, ...] = ()
    kind: str = "AVRO"


class Registry:
    """Asks a registry. Connections are opened at the first question.

    Every method raises:
        ConfigError: the library is missing, or a secret.
        NotAdmitted: the login, or what was asked, is refused.
        Unavailable: there was no answer of a registry.
    """

    def __init__(self, place: RegistryPlace) -> None:
        self._place = place
        self._pool: Any = None
        self._away_until = 0.0
        self._why_away = ""

    def schema(self, number: int) -> Registered | None:
        """Return the schema with an id; None if the registry has none."""
        found = self._ask("GET", f"/schemas/ids/{number}")
        return None if found is None else self._registered(found)

    def newest(self, subject: str) -> tuple[int, Registered] | None:
        """Return the newest schema of a subject, with its id; None if there is none."""
        found = self._ask("GET", f"/subjects/{_quoted(subject)}/versions/latest")
        return None if found is None else (self._number(found), self._registered(found))

    def subjects(self, number: int) -> tuple[str, ...]:
        """Return the subjects that have the schema with an id; empty if they are not known now."""
        with suppress(HoldfastError):  # it only makes a message clearer
            found = self._ask("GET", f"/schemas/ids/{number}/versions")
            if isinstance(found, list) and all(isinstance(each, dict) for each in found):
                return tuple(str(each.get("subject")) for each in found)
        return ()

    def registered(self, subject: str, text: str) -> int | None:
        """Return the id of a schema of a subject; None if the subject does not have it."""
        found = self._ask("POST", f"/subjects/{_quoted(subject)}", {"schema": text})
        return None if found is None else self._number(found)

    def register(self, subject: str, text: str) -> int:
        """Add a schema to a subject, unless it has it, and return its id.

        Raises:
            ConfigError: the registry refuses the schema, as it is not compatible with former ones.
        """
        found = self._ask("POST", f"/subjects/{_quoted(subject)}/versions", {"schema": text})
        return self._number(found)

    def close(self) -> None:
        """Drop the connections; the next question opens one."""
        if self._pool is not None:
            self._pool.clear()
            self._pool = None

    def _registered(self, found: Any, level: int = 0) -> Registered:
        text, kind = self._of(found, "schema", str), str(found.get("schemaType") or "AVRO")
        texts = dict[str, None]()
        self._follow(found, texts, {})
        return Registered(text, tuple(texts), kind)

    def _follow(self, found: Any, texts: dict[str, None], seen: dict[tuple[str, int], None]) -> None:
        """Add the schemas that one uses, those that they use before them."""
        for each in found.get("references") or ():
            subject, version = self._of(each, "subject", str), self._of(each, "version", int)
            if (subject, version) in seen:
                continue
            seen[subject, version] = None
            if len(seen) > REFERENCES_MAX:
                raise self._unavailable(f"a schema uses more than {REFERENCES_MAX} others")
            dependency = self._ask("GET", f"/subjects/{_quoted(subject)}/versions/{version}")
            if dependency is None:
                raise self._unavailable(f"it lacks version {version} of {subject!r}, which a schema uses")
            self._follow(dependency, texts, seen)
            texts[self._of(dependency, "schema", str)] = None

    def _number(self, found: Any) -> int:
        number: int = self._of(found, "id", int)
        return number

    def _of(self, found: Any, name: str, kind: type) -> Any:
        value = found.get(name) if isinstance(found, dict) else None
        if not isinstance(value, kind):
            raise self._unavailable(f"its answer has no {name!r}")
        return value

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        """Return the answer to a request; None if what it asks for does not exist."""
        if time.monotonic() < self._away_until:
            raise self._unavailable(self._why_away)
        status, answer = self._send(method, path, body)
        if status == 200:
            return answer
        told = answer if isinstance(answer, dict) else {}
        message = self._without_secrets(str(told.get("message", "")))[:_MESSAGE_MAX]
        if status == 404 and told.get("error_code") in _MISSING:
            return None
        if status in (401, 403):
            raise NotAdmitted(
                f"{self._place.where} refuses the login, or has no right for it (HTTP {status}) {message}".rstrip(),
                not_done="the schema is not known",
                next_step="correct user= and the secret of password=, or grant the user READ, and for a sink WRITE, on "
                "the subject",
            )
        if status in (409, 422):
            raise ConfigError(
                f"{self._place.where} refuses the schema (HTTP {status}): {message}",
                not_done="the schema was not registered",
                next_step="make the columns compatible with the former schemas of the subject, such as by null for new "
                "ones; or name another subject=",
            )
        raise self._away(f"it answers with HTTP {status} {message}".rstrip())

    def _send(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        """Return status and JSON of an answer; the JSON is None if it is none."""
        pool = self._opened()
        import urllib3

        headers = {"Accept": f"{_JSON}, application/json", "Content-Type": _JSON}
        place = self._place
        if place.user is not None and place.password is not None:
            login = f"{place.user}:{place.password.value()}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(login).decode()}"
        try:
            response = pool.request(
                method,
                place.url + path,
                body=None if body is None else json.dumps(body).encode(),
                headers=headers,
                preload_content=False,
                redirect=False,
            )
            with response:
                data = response.read(ANSWER_BYTES_MAX + 1)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise self._away(self._without_secrets(_OBJECT.sub("", str(error)))[:_MESSAGE_MAX]) from None
        if len(data) > ANSWER_BYTES_MAX:
            raise self._away(f"its answer is longer than {ANSWER_BYTES_MAX:,} bytes")
        self._away_until = 0.0
        try:
            return int(response.status), json.loads(data)
        except ValueError:
            if response.status == 200:
                raise self._away("its answer is not JSON") from None
            return int(response.status), None

    def _opened(self) -> Any:
        if self._pool is None:
            try:
                import urllib3
            except ImportError as error:
                raise no_library("urllib3", error) from error
            verified = {} if self._place.ca is None else {"ca_certs": self._place.ca}
            timeout = urllib3.Timeout(connect=ANSWER_WITHIN_S, read=ANSWER_WITHIN_S)
            self._pool = urllib3.PoolManager(num_pools=1, maxsize=1, retries=False, timeout=timeout, **verified)
        return self._pool

    def _away(self, why: str) -> Unavailable:
        self._away_until, self._why_away = time.monotonic() + AWAY_S, why
        self.close()
        return self._unavailable(why)

    def _unavailable(self, why: str) -> Unavailable:
        return Unavailable(
            f"{self._place.where} is unreachable: {why}",
            not_done="the schema is not known",
            next_step="check that the registry runs, that this machine reaches it, and that registry= is its address",
        )

    def _without_secrets(self, text: str) -> str:
        for each in self._place.secrets:
            with suppress(HoldfastError):  # it cannot be read any more; the next request reports that
                text = text.replace(each.value(), SHOWN)
        return text


def no_library(name: str, error: ImportError) -> ConfigError:
    """Return the error for a machine without a library."""
    return ConfigError(
        f"hf.Avro needs {name}, which cannot be imported: {error}",
        not_done="nothing was opened",
        next_step=f"install it here and on every worker: {install('avro')}",
    )


def _quoted(subject: str) -> str:
    return quote(subject, safe="")
