"""Documents of results: reading, checking against their schema, writing."""

import json
import os
from functools import cache
from importlib import resources

import jsonschema

from ropekit_bench.compact import expand


class ResultsError(Exception):
    """A file that holds no results, with the reason."""


@cache
def validator():
    text = resources.files(__package__).joinpath("results.schema.json").read_text(encoding="utf-8")
    return jsonschema.Draft202012Validator(json.loads(text))


def check(document, name):
    """Raises ResultsError, naming the member that the schema refuses."""
    error = jsonschema.exceptions.best_match(validator().iter_errors(document))
    if error is not None:
        place = "/".join(str(step) for step in error.absolute_path) or "the document"
        raise ResultsError(f"{name}: {place}: {error.message[:300]}")


def load(path):
    """What a file holds, checked."""
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except (OSError, ValueError) as error:
        raise ResultsError(f"{path}: {error}") from error
    check(document, path)
    return document


def read(path):
    """The document of a file, expanded where that is compact."""
    return expand(load(path))


def write(document, path):
    """Writes one record a line, of a compact document without blanks, and replaces the file at once.
    ResultsError where a number is not finite, which JSON cannot say."""
    head = {k: v for k, v in document.items() if k != "records"}
    separators = (",", ":") if "columns" in document else None
    try:
        head = json.dumps(head, indent=1, allow_nan=False)
        lines = [json.dumps(r, allow_nan=False, separators=separators) for r in document["records"]]
    except ValueError as error:
        raise ResultsError(f"{path}: {error}") from error
    records = ",\n".join(lines)
    with open(f"{path}.part", "w", encoding="utf-8") as file:
        file.write(f'{head[:-2]},\n "records": [\n{records}\n]}}\n')
    os.replace(f"{path}.part", path)
