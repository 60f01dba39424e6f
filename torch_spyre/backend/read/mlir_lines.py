"""The fast way to read bundle.mlir: line by line, an order of magnitude faster than its grammar.

In: the text. Out: its Function when it has no loops and one statement a line, as compilers write
it; None for everything else, and for whatever is wrong: the grammar (`mlir`) then says what.
"""

from __future__ import annotations

import re

from torch_spyre.backend.read.mlir_function import POOL_PARAMETER, Execute, Function, Node, Value

_FUNCTION = re.compile(r"func\.func @sdsc_bundle\(([^()]*)\) \{")
_PARAMETER = re.compile(r"%([A-Za-z_]\w*): !sdscbundle\.input_arg<index>")
_EXTRACT = re.compile(
    r"(%[A-Za-z_]\w*) = sdscbundle\.input_arg_extract value from %([A-Za-z_]\w*) : "
    r"!sdscbundle\.input_arg<index> -> index"
)
_CONSTANT = re.compile(r"(%[A-Za-z_]\w*) = arith\.constant (\d+) : index")
_ADD = re.compile(r"(%[A-Za-z_]\w*) = arith\.addi (%\w+), (%\w+) : index")
_EXECUTE = re.compile(
    r"sdscbundle\.sdsc_execute \(([^()]*)\) "
    r'\{sdsc_filename="([^"]+)"(?:, "symbol_ids"=\[([-\d, ]*)\])?\}'
)


def parse_lines(text: str) -> Function | None:
    """The whole text, without tokens."""
    lines = [line.strip() for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    head = _FUNCTION.fullmatch(lines[1]) if len(lines) > 4 else None
    if head is None or lines[0] != "module {" or lines[-3:] != ["return", "}", "}"]:
        return None
    found = [_PARAMETER.fullmatch(p) for p in head[1].split(", ")] if head[1] else []
    parameters = [match[1] for match in found if match is not None]
    if len(parameters) < len(found) or len(set(parameters)) < len(parameters):
        return None
    if POOL_PARAMETER in parameters[1:]:
        return None
    values: dict[str, Value] = {}
    ids_of: dict[str, list[int]] = {}
    body: list[Node] = []
    for number, line in enumerate(lines[2:-3], start=3):
        name, value = "", None
        if match := _ADD.fullmatch(line):
            name, left, right = match[1], values.get(match[2]), values.get(match[3])
            if left is None or right is None or right.base is not None:
                return None
            value = Value(left.base, left.constant + right.constant)
        elif match := _CONSTANT.fullmatch(line):
            name, value = match[1], Value(constant=int(match[2]))
        elif match := _EXECUTE.fullmatch(line):
            node = _execute_line(match, number, values, ids_of)
            if node is None:
                return None
            body.append(node)
            continue
        elif match := _EXTRACT.fullmatch(line):
            if match[2] not in parameters:
                return None
            name, value = match[1], Value(base=parameters.index(match[2]))
        if value is None or name in values or name[1:] in parameters:
            return None
        values[name] = value
    return Function(tuple(parameters), tuple(body))


def _execute_line(
    match: re.Match[str], line: int, values: dict[str, Value], ids_of: dict[str, list[int]]
) -> Execute | None:
    """`ids_of` keeps lists of symbol ids: a file that runs often has the same one each time."""
    ids = ids_of.get(match[3] or "")
    if ids is None:
        try:
            ids = [int(n) for n in match[3].split(", ")] if match[3] else []
        except ValueError:
            return None
        if len(set(ids)) < len(ids) or any(n >= 0 for n in ids):
            return None
        ids_of[match[3] or ""] = ids
    try:
        operands = [values[name] for name in match[1].split(", ")] if match[1] else []
    except KeyError:
        return None
    if len(ids) != len(operands):
        return None
    return Execute(match[2], tuple(zip(ids, operands)), line)
