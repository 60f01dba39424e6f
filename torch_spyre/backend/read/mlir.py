"""Reads bundle.mlir: which files run, in what order, in what loops, with which addresses.

In: the text. Out: a Function of Execute and Loop nodes, whose operands are affine values:
a base (a parameter of the function), a constant and a multiple of each loop counter. The subset of
MLIR is the one of docs/formats/superdsc.md; anything else is an error with line and column.

Example: `%a = arith.addi %arg_0, %c4096 : index` gives `%a` the value Value(base=0, constant=4096).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

from torch_spyre.backend.errors import BundleError
from torch_spyre.backend.read.mlir_function import (
    POOL_PARAMETER,
    Execute,
    Function,
    Loop,
    Node,
    Value,
)
from torch_spyre.backend.read.mlir_lines import parse_lines

_INPUT_ARG = "!sdscbundle.input_arg"


def parse_bundle_mlir(text: str, file: str = "bundle.mlir") -> Function:
    """Parse the whole text. Raises BundleError."""
    return parse_lines(text) or _Parser(text, file).parse()


# ---- Tokens --------------------------------------------------------------------------------------

_TOKEN = re.compile(
    r"""(?:\s+|//[^\n]*)*
      ( "[^"\n]*"
      | ->
      | -?\d+
      | [%#@!]?[A-Za-z_][\w$.]* | [%#]\d+
      | [(){}\[\]<>,:=+*-]
      | \Z
      | . )""",
    re.VERBOSE,
)
_NAME = re.compile(r"[%#@!]?[A-Za-z_]|[%#]\d")
_KNOWN = re.compile(r"""["\w%#@!(){}\[\]<>,:=+*-]|\Z""")


class _Token(NamedTuple):
    text: str
    at: int

    @property
    def is_number(self) -> bool:
        return self.text.lstrip("-").isdecimal()

    @property
    def is_string(self) -> bool:
        return self.text.startswith('"')

    @property
    def is_name(self) -> bool:
        return bool(_NAME.match(self.text))


def _tokens(text: str, fail: _Fail) -> list[_Token]:
    """All of them; the last one is empty."""
    tokens = [_Token(m[1], m.start(1)) for m in _TOKEN.finditer(text)]
    for token in tokens:
        if token.text == '"' or not _KNOWN.match(token.text):
            fail(
                token.at,
                f"found '{token.text}', allowed: the MLIR subset of docs/formats/superdsc.md",
            )
    return tokens


@dataclass(frozen=True)
class _Fail:
    """Raises an error for a place in the text."""

    text: str
    file: str

    def line(self, at: int) -> int:
        return self.text.count("\n", 0, at) + 1

    def __call__(self, at: int, what: str) -> NoReturn:
        column = at - (self.text.rfind("\n", 0, at) + 1) + 1
        raise BundleError(f"{self.file}: line {self.line(at)}, column {column}: {what}")


@dataclass(frozen=True)
class _Map:
    """An affine map: a coefficient for each dimension and symbol, and a constant."""

    dims: tuple[str, ...]
    symbols: tuple[str, ...]
    coefficients: dict[str, int]
    constant: int


@dataclass
class _Scope:
    """Names and values, and the number of loops around them."""

    values: dict[str, Value] = field(default_factory=dict)
    depth: int = 0


# ---- Grammar -------------------------------------------------------------------------------------


class _Parser:
    def __init__(self, text: str, file: str) -> None:
        self._fail = _Fail(text, file)
        self._tokens = _tokens(text, self._fail)
        self._next = 0
        self._maps: dict[str, _Map] = {}
        self._parameters: list[str] = []

    def parse(self) -> Function:
        while self._peek().text.startswith("#"):
            self._map_definition()
        self._expect("module")
        self._expect("{")
        self._expect("func.func")
        self._expect("@sdsc_bundle")
        self._parse_parameters()
        self._expect("{")
        body = self._statements(_Scope(), "return")
        self._expect("return")
        self._expect("}")
        self._expect("}")
        if self._peek().text:
            self._unexpected("the end of the file")
        return Function(tuple(self._parameters), body)

    # tokens

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._tokens[self._next]
        self._next = min(self._next + 1, len(self._tokens) - 1)
        return token

    def _unexpected(self, allowed: str) -> NoReturn:
        token = self._peek()
        found = f"'{token.text}'" if token.text else "the end of the file"
        self._fail(token.at, f"found {found}, allowed: {allowed}")

    def _expect(self, text: str) -> _Token:
        if self._peek().text != text:
            self._unexpected(f"'{text}'")
        return self._take()

    def _accept(self, text: str) -> bool:
        if self._peek().text != text:
            return False
        self._take()
        return True

    def _name(self, sigil: str, what: str) -> _Token:
        token = self._peek()
        if not token.is_name or not token.text.startswith(sigil):
            self._unexpected(what)
        return self._take()

    def _integer(self) -> int:
        if not self._peek().is_number:
            self._unexpected("an integer")
        return int(self._take().text)

    def _names(self, close: str) -> tuple[str, ...]:
        names: list[str] = []
        while not self._accept(close):
            if names:
                self._expect(",")
            names.append(self._name("", "a name").text)
        return tuple(names)

    # #map = affine_map<(d0, d1)[s0] -> (s0 + 4096*d0)>

    def _map_definition(self) -> None:
        name = self._take()
        if name.text in self._maps:
            self._fail(name.at, f"map {name.text} is defined twice, allowed: once")
        for text in ("=", "affine_map", "<", "("):
            self._expect(text)
        dims = self._names(")")
        symbols = self._names("]") if self._accept("[") else ()
        self._expect("->")
        self._expect("(")
        coefficients = dict.fromkeys((*dims, *symbols), 0)
        constant = self._sum(coefficients)
        self._expect(")")
        self._expect(">")
        self._maps[name.text] = _Map(dims, symbols, coefficients, constant)

    def _sum(self, coefficients: dict[str, int]) -> int:
        constant, sign = 0, 1
        while True:
            factor, name = self._term(coefficients)
            if name:
                coefficients[name] += sign * factor
            else:
                constant += sign * factor
            if self._accept("+"):
                sign = 1
            elif self._accept("-"):
                sign = -1
            elif self._peek().is_number and self._peek().text.startswith("-"):
                sign = 1  # `d0 -4`: the sign belongs to the number
            else:
                return constant

    def _term(self, known: dict[str, int]) -> tuple[int, str]:
        factor, name = 1, ""
        while True:
            token = self._peek()
            if token.is_number:
                factor *= self._integer()
            elif token.text in known and not name:
                name = self._take().text
            else:
                self._unexpected("a sum of constants times dimensions and symbols")
            if not self._accept("*"):
                return factor, name

    # (%arg_0_base_addr: !sdscbundle.input_arg<index>, ...)

    def _parse_parameters(self) -> None:
        self._expect("(")
        while not self._accept(")"):
            if self._parameters:
                self._expect(",")
            token = self._name("%", "a parameter like %arg_0_base_addr")
            name = token.text[1:]
            if name in self._parameters:
                self._fail(token.at, f"parameter %{name} appears twice, allowed: once")
            if name == POOL_PARAMETER and self._parameters:
                self._fail(token.at, f"%{name} is parameter {len(self._parameters)}, allowed: 0")
            self._parameters.append(name)
            self._expect(":")
            self._input_arg_type()

    def _input_arg_type(self) -> None:
        for text in (_INPUT_ARG, "<", "index", ">"):
            self._expect(text)

    # statements

    def _statements(self, scope: _Scope, end: str) -> tuple[Node, ...]:
        nodes: list[Node] = []
        while self._peek().text != end:
            token = self._peek()
            if token.text.startswith("%"):
                self._assignment(scope)
            elif token.text == "scf.for":
                nodes.append(self._loop(scope))
            elif token.text == "sdscbundle.sdsc_execute":
                nodes.append(self._execute(scope))
            else:
                self._unexpected(f"an operation of the subset, or '{end}'")
        return tuple(nodes)

    def _define(self, scope: _Scope, token: _Token, value: Value) -> None:
        if token.text in scope.values or token.text[1:] in self._parameters:
            self._fail(token.at, f"{token.text} is defined twice, allowed: once")
        scope.values[token.text] = value

    def _use(self, scope: _Scope) -> Value:
        token = self._name("%", "an SSA value like %arg_0")
        if token.text not in scope.values:
            hint = ""
            if token.text[1:] in self._parameters:
                hint = " (a parameter: extract its value first)"
            known = ", ".join(list(scope.values)[-8:]) or "none"
            self._fail(token.at, f"unknown SSA value {token.text}{hint}, allowed: {known}")
        return scope.values[token.text]

    def _assignment(self, scope: _Scope) -> None:
        name = self._take()
        self._expect("=")
        operation = self._name("", "an operation").text
        if operation == "arith.constant":
            value = Value(constant=self._integer())
            self._index_type()
        elif operation == "arith.addi":
            at = self._peek().at
            left = self._use(scope)
            self._expect(",")
            value = self._add(left, self._use(scope), at)
            self._index_type()
        elif operation == "affine.apply":
            value = self._apply(scope)
        elif operation == "sdscbundle.input_arg_extract":
            value = self._extract()
        else:
            self._next -= 1
            self._unexpected(
                "arith.constant, arith.addi, affine.apply, sdscbundle.input_arg_extract"
            )
        self._define(scope, name, value)

    def _index_type(self) -> None:
        self._expect(":")
        self._expect("index")

    def _add(self, left: Value, right: Value, at: int, factor: int = 1) -> Value:
        """left + factor * right."""
        base = left.base
        if right.base is not None and factor != 0:
            if base is not None or factor != 1:
                self._fail(at, "an address with two bases, allowed: one base plus constants")
            base = right.base
        depth = max(len(left.strides), len(right.strides))
        padded = [v.strides + (0,) * (depth - len(v.strides)) for v in (left, right)]
        strides = tuple(a + factor * b for a, b in zip(*padded))
        return Value(base, left.constant + factor * right.constant, strides)

    def _extract(self) -> Value:
        for text in ("value", "from"):
            self._expect(text)
        token = self._name("%", "a parameter")
        if token.text[1:] not in self._parameters:
            known = ", ".join("%" + p for p in self._parameters) or "none"
            self._fail(token.at, f"unknown parameter {token.text}, allowed: {known}")
        self._expect(":")
        self._input_arg_type()
        self._expect("->")
        self._expect("index")
        return Value(base=self._parameters.index(token.text[1:]))

    def _apply(self, scope: _Scope) -> Value:
        token = self._name("#", "a map like #map_0")
        if token.text not in self._maps:
            known = ", ".join(self._maps) or "none"
            self._fail(token.at, f"unknown map {token.text}, allowed: {known}")
        affine = self._maps[token.text]
        self._expect("(")
        dims = self._uses(scope, ")")
        symbols = self._uses(scope, "]") if self._accept("[") else []
        for what, found, expected in (
            ("dimensions", dims, affine.dims),
            ("symbols", symbols, affine.symbols),
        ):
            if len(found) != len(expected):
                count = f"{len(found)} {what} for {token.text}"
                self._fail(token.at, f"found {count}, allowed: {len(expected)}")
        value = Value(constant=affine.constant)
        for name, operand in zip((*affine.dims, *affine.symbols), (*dims, *symbols)):
            value = self._add(value, operand, token.at, affine.coefficients[name])
        return value

    def _uses(self, scope: _Scope, close: str) -> list[Value]:
        values: list[Value] = []
        while not self._accept(close):
            if values:
                self._expect(",")
            values.append(self._use(scope))
        return values

    # scf.for %i_0 = %c0 to %loop_bound_0 step %c1 { ... }

    def _loop(self, scope: _Scope) -> Loop:
        start = self._take()
        counter = self._name("%", "a loop counter like %i_0")
        self._expect("=")
        bounds: list[int] = []
        for what, before in (("lower bound", ""), ("upper bound", "to"), ("step", "step")):
            if before:
                self._expect(before)
            token = self._peek()
            value = self._use(scope)
            if not value.is_constant:
                self._fail(token.at, f"loop {what} {token.text} is not constant, allowed: constant")
            bounds.append(value.constant)
        low, high, step = bounds
        if step < 1:
            self._fail(start.at, f"loop step is {step}, allowed: 1 or more")
        count = -(-(high - low) // step)
        if count < 1:
            self._fail(start.at, f"loop runs {count} times, allowed: once or more")
        inner = _Scope(dict(scope.values), scope.depth + 1)
        counter_value = Value(constant=low, strides=(0,) * scope.depth + (step,))
        self._define(inner, counter, counter_value)
        self._expect("{")
        body = self._statements(inner, "}")
        self._expect("}")
        return Loop(count, body)

    # sdscbundle.sdsc_execute (%a, %b) {sdsc_filename="sdsc_0.json", "symbol_ids"=[-1, -2]}

    def _execute(self, scope: _Scope) -> Execute:
        start = self._take()
        self._expect("(")
        operands = self._uses(scope, ")")
        self._expect("{")
        file = ""
        ids: list[int] = []
        seen: set[str] = set()
        while not self._accept("}"):
            if seen:
                self._expect(",")
            key = self._take()
            name = key.text.strip('"')
            if name in seen:
                self._fail(key.at, f"attribute {name} appears twice, allowed: once")
            seen.add(name)
            self._expect("=")
            if name == "sdsc_filename":
                if not self._peek().is_string:
                    self._unexpected('a file name like "sdsc_0.json"')
                file = self._take().text[1:-1]
            elif name == "symbol_ids":
                self._expect("[")
                while not self._accept("]"):
                    if ids:
                        self._expect(",")
                    ids.append(self._integer())
            else:
                self._fail(
                    key.at, f"unknown attribute {key.text}, allowed: sdsc_filename, symbol_ids"
                )
        if not file:
            self._fail(start.at, "sdsc_execute without sdsc_filename, allowed: one file name")
        if len(operands) != len(ids):
            found = f"{len(operands)} operands and {len(ids)} symbol_ids"
            self._fail(start.at, f"found {found}, allowed: one operand for each symbol id")
        for symbol in ids:
            if symbol >= 0:
                self._fail(start.at, f"symbol id {symbol}, allowed: negative integers")
            if ids.count(symbol) > 1:
                self._fail(start.at, f"symbol id {symbol} appears twice, allowed: once")
        depth = scope.depth
        padded = [
            Value(v.base, v.constant, v.strides + (0,) * (depth - len(v.strides))) for v in operands
        ]
        return Execute(file, tuple(zip(ids, padded)), self._fail.line(start.at))
