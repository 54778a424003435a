"""StableHLO text (MLIR) as a `Graph`: rewritten in the form of HLO text, line by line, and parsed as such.

The text is that of torch_tpu 0.2.0's debug_callback: one operation per line, `%1 = stablehlo.add %0, %arg1 :
tensor<2x3xf32> loc(#loc1)`. Operations with a body are one line ("applies"), or begin one; lines of another form are
left out.
"""

from __future__ import annotations

import re

from tpu_magics.backends.hlo.text import Graph, parse

_LOCATION = re.compile(r' loc\((?:#loc\d*|unknown|"[^"]*"[^()]*(?:\([^()]*\))?)\)')
_OPERATION = re.compile(r'^\s*(?:(%[\w$.-]+)(?::\d+)? = )?"?stablehlo\.(\w+)"?(.*)$')
_FUNCTION = re.compile(r"^\s*func\.func (public|private)?\s*@([\w.$-]+)\((.*?)\)(?: -> (.*?))? (?:attributes .*)?\{$")
_TENSOR = re.compile(r"tensor<((?:\d+x|\?x)*)([a-z]\w*)[^>]*>")
_ARGUMENT = re.compile(r"(%[\w$.-]+): (tensor<[^>]*>)")
_NAME = re.compile(r"%[\w$.-]+")
_OPCODES = {"dot_general": "dot", "dynamic_conv": "convolution"}  # others are the same but for "_" and "-"
_TYPES = {"i1": "pred", "ui8": "u8", "ui16": "u16", "ui32": "u32", "ui64": "u64"}


def parse_stablehlo(text: str) -> Graph:
    """The graph of a module of StableHLO. Any other text gives a graph without instructions."""
    return parse(_as_hlo(text))


def _as_hlo(text: str) -> str:
    """StableHLO operations as HLO text, without what a graph does not need."""
    lines = ["HloModule stablehlo"]
    for line in _LOCATION.sub("", text).splitlines():
        function, operation = _FUNCTION.match(line), _OPERATION.match(line)
        if function is not None:
            lines += _heading(function)
        elif operation is not None:
            lines.append(_instruction(*operation.groups()))
        elif line.strip() == "}" and line.startswith("  }") and not line.startswith("   "):
            lines.append("}")
    return "\n".join(lines) + "\n"


def _heading(found: re.Match[str]) -> list[str]:
    visibility, name, arguments, results = found.groups()
    entry = "" if visibility == "private" or name != "main" else "ENTRY "
    named = [(argument[1:], _types(type_)) for argument, type_ in _ARGUMENT.findall(arguments)]
    takes = ", ".join(f"{argument}: {type_}" for argument, type_ in named)
    parameters = [f"  %{argument} = {type_} parameter({place})" for place, (argument, type_) in enumerate(named)]
    return [f"{entry}%{name} ({takes}) -> ({_types(results or '')}) {{", *parameters]


def _instruction(result: str | None, name: str, rest: str) -> str:
    body, _, signature = rest.rpartition(" : ")
    type_ = _types(signature.rpartition("->")[2] or signature)
    opcode = _OPCODES.get(name, name.replace("_", "-"))
    if name == "constant":
        return f"  {result} = {type_} constant({body.strip()})"
    operands = _NAME.findall(body)
    attributes = " ".join(_NAME.sub("", body).replace("(", "[").replace(")", "]").split()).strip(" ,")
    kept = f", attributes={attributes}" if attributes else ""
    return f"  {result or '%result'} = {type_} {opcode}({', '.join(operands)}){kept}"


def _types(text: str) -> str:
    """HLO's names of tensor types: "tensor<4x3xf32>" -> "f32[4,3]"."""
    found = [
        f"{_TYPES.get(dtype) or re.sub(r'^i(?=[0-9])', 's', dtype)}[{','.join(sizes.split('x')[:-1])}]"
        for sizes, dtype in _TENSOR.findall(text)
    ]
    return found[0] if len(found) == 1 else f"({', '.join(found)})"
