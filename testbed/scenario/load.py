"""Reading a scenario file: YAML with places, overrides, validation; every problem told with file, line and remedy."""

import io
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent

from testbed.scenario.schema import Scenario

MAX_FILE_BYTES = 4 << 20
MAX_DEPTH = 32

Location = tuple[str | int, ...]


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: where, what, and what to do about it."""

    path: Location
    message: str
    line: int | None = None
    source: str = ""

    def __str__(self) -> str:
        place = self.source if self.line is None else f"{self.source}:{self.line}"
        key = ".".join(map(str, self.path))
        return f"{place}: {key}: {self.message}" if key else f"{place}: {self.message}"


class ScenarioError(Exception):
    """A scenario cannot be run. `problems` lists every reason found."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        super().__init__("\n".join(map(str, problems)))


class Source:
    """A scenario's text and where its keys stand, so that later stages can report places too."""

    def __init__(self, name: str, data: Any, overrides: Mapping[Location, str]) -> None:
        self.name = name
        self._data = data
        self._overrides = overrides

    def problem(self, path: Location, message: str) -> Problem:
        """A problem at a path of the scenario, with its line (or the override that set it)."""
        for length in range(len(path), 0, -1):
            if override := self._overrides.get(path[:length]):
                return Problem(path, message, None, f"--set {override}")
        return Problem(path, message, self._line(path), self.name)

    def _line(self, path: Location) -> int | None:
        line: int | None = None
        here = self._data
        for key in path:
            try:
                if isinstance(here, CommentedMap) and key in here:
                    line = here.lc.key(key)[0] + 1
                elif isinstance(here, CommentedSeq) and isinstance(key, int) and key < len(here):
                    line = here.lc.item(key)[0] + 1
                else:
                    break
            except (KeyError, TypeError, AttributeError):
                break  # set from outside the file: the nearest line above it stays
            here = here[key]
        return line


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ScenarioError([Problem((), f"larger than {MAX_FILE_BYTES} bytes; no scenario is", None, str(path))])
        return path.read_text(encoding="utf-8")
    except OSError as error:
        reason = error.strerror or str(error)
        raise ScenarioError([Problem((), f"cannot be read: {reason}", None, str(path))]) from None
    except UnicodeDecodeError:
        raise ScenarioError([Problem((), "is not UTF-8 text", None, str(path))]) from None


def _check_shape(text: str, name: str) -> None:
    """Refuses aliases (a short text that stands for a huge one) and deep nesting before anything is built."""
    depth = 0
    for event in YAML(typ="safe", pure=True).parse(io.StringIO(text)):
        line = event.start_mark.line + 1 if event.start_mark else None
        if isinstance(event, AliasEvent):
            raise ScenarioError([Problem((), "YAML aliases (*name) are not allowed: write the value out", line, name)])
        if isinstance(event, CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise ScenarioError([Problem((), f"nested deeper than {MAX_DEPTH} levels", line, name)])
        elif isinstance(event, CollectionEndEvent):
            depth -= 1


def _parse(text: str, name: str) -> CommentedMap:
    try:
        _check_shape(text, name)
        data = YAML(typ="rt").load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark
        line = mark.line + 1 if mark else None
        detail = (error.problem or "cannot be parsed").split("\n")[0]
        raise ScenarioError([Problem((), f"not valid YAML: {detail}", line, name)]) from None
    except (YAMLError, ValueError, RecursionError) as error:
        detail = str(error).split("\n")[0]
        raise ScenarioError([Problem((), f"not valid YAML: {detail}", None, name)]) from None
    if not isinstance(data, CommentedMap):
        raise ScenarioError([Problem((), "a scenario is a mapping of keys (name, topology, traffic ...)", 1, name)])
    return data


def _apply_override(data: Any, text: str) -> Location:
    """Sets `key.path=value`; the value is YAML, list items are numbered from 0."""

    def fail(message: str) -> ScenarioError:
        return ScenarioError([Problem((), message, None, f"--set {text}")])

    path_text, equals, value_text = text.partition("=")
    if not equals or not path_text:
        raise fail("write --set key.path=value, as in --set switch.pfc.enabled=false")
    keys: list[str | int] = [int(k) if k.isdecimal() else k for k in path_text.split(".")]
    value = _parse(f"value: {value_text}", f"--set {text}")["value"]
    here = data
    for i, key in enumerate(keys[:-1]):
        if isinstance(here, CommentedMap) and not isinstance(key, int) and key not in here:
            here[key] = CommentedMap()
        try:
            here = here[key]
        except (KeyError, IndexError, TypeError):
            where = ".".join(map(str, keys[: i + 1]))
            raise fail(f"{where} is not there to be set") from None
    last = keys[-1]
    if isinstance(here, CommentedSeq):
        if not isinstance(last, int) or last >= len(here):
            raise fail(f"the list has {len(here)} items, numbered from 0")
        here[last] = value
    elif isinstance(here, CommentedMap):
        here[last] = value
    else:
        raise fail(f"{'.'.join(map(str, keys[:-1]))} holds a plain value, not keys")
    return tuple(keys)


def _keys_of(path: Location) -> list[str]:
    """The keys that would have been allowed where an unknown one was found, by following the schema."""
    model: Any = Scenario
    for key in path[:-1]:
        models = _models_in(model.model_fields[key].annotation) if _has_field(model, key) else []
        if isinstance(key, int):
            continue
        tag = path[path.index(key) + 1 : path.index(key) + 3]
        tagged = [m for m in models if any(_tag(m) == t for t in tag)]
        model = (tagged or models or [model])[0]
    return list(model.model_fields)


def _has_field(model: Any, key: str | int) -> bool:
    return isinstance(key, str) and key in model.model_fields


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for a in getattr(annotation, "__args__", ()) for m in _models_in(a)]


def _tag(model: type[BaseModel]) -> str | None:
    for name in ("kind", "pattern"):
        if name in model.model_fields:
            return str(model.model_fields[name].annotation.__args__[0])  # type: ignore[union-attr]
    return None


def _tags(model: type[BaseModel]) -> set[str]:
    """The tags of every tagged union below a model: pydantic puts them into the paths of errors."""
    below = [m for field in model.model_fields.values() for m in _models_in(field.annotation)]
    return {t for t in map(_tag, below) if t} | {t for m in below for t in _tags(m)}


_TAGS = _tags(Scenario)
_UNION_BRANCH = re.compile(r"^(function-|literal|tuple|constrained|int$|float$|str$|bool$|nullable)")


def _explain(error: Any) -> str:
    kind = error["type"]
    path = tuple(error["loc"])
    if kind == "extra_forbidden":
        allowed = _keys_of(path)
        close = get_close_matches(str(path[-1]), allowed, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known here: {', '.join(allowed)}"
        return f"unknown key; {hint}"
    if kind == "missing":
        return "is missing, and has no default: add it"
    message = str(error["msg"]).removeprefix("Value error, ")
    return message[:1].lower() + message[1:]


def _problems(error: ValidationError, source: Source) -> list[Problem]:
    found: dict[tuple[Location, str], Problem] = {}
    for item in error.errors():
        # Pydantic puts the branch of a union into the path; a file has no such key.
        path = tuple(key for key in item["loc"] if not (isinstance(key, str) and (key in _TAGS or _UNION_BRANCH.match(key))))
        message = _explain(item)
        found.setdefault((path, message), source.problem(path, message))
    return list(found.values())


def load(path: Path, overrides: Iterable[str] = (), seed: int | None = None) -> tuple[Scenario, Source]:
    """Reads and validates a scenario file, with `key.path=value` overrides put in first.

    Raises:
        ScenarioError: with every problem found, each with its file and line.
    """
    data = _parse(_read(path), str(path))
    places = {_apply_override(data, text): text for text in overrides}
    if seed is not None:
        data["seed"] = seed
        places[("seed",)] = f"seed={seed}"
    source = Source(str(path), data, places)
    try:
        return Scenario.model_validate(_plain(data)), source
    except ValidationError as error:
        raise ScenarioError(_problems(error, source)) from None


def _plain(data: Any) -> Any:
    if isinstance(data, CommentedMap):
        return {key: _plain(value) for key, value in data.items()}
    if isinstance(data, CommentedSeq):
        return [_plain(value) for value in data]
    return data


def dump(scenario: Scenario) -> str:
    """The scenario as YAML, every default filled in and every unit explicit."""
    out = io.StringIO()
    yaml = YAML(typ="rt")
    yaml.default_flow_style = False
    yaml.dump(scenario.model_dump(mode="json", exclude_none=True), out)
    return out.getvalue()
