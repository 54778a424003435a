"""The compiler's error texts -> sizes, buffers, ops, source lines. Standard library only.

The texts are those of libtpu 0.0.21.1 and 0.0.52. For too little HBM there are three: a short one ("the total memory
required for HLO temporaries (16.00G) exceeds available HBM (15.75G)", 0.0.52; its "temporaries" include arguments and
outputs), a long one, with a table ("Used 16.00G of 15.75G hbm. Exceeded hbm capacity by 258.00M."), and one of a single
buffer ("Allocation (size=30198988800) would exceed memory (size=17179869184)", 0.0.21.1).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tpu_magics.preflight.compile_result import Buffer, HbmUsage, SourceLine, UnsupportedOp

_TOO_LARGE = re.compile(
    r"CompileTimeHbmOom|RESOURCE_EXHAUSTED.*(?:memory space hbm|would exceed.*space=hbm)", re.DOTALL
)
_SIZE = r"([\d.]+)([KMGT]?)B?"
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SHORT = re.compile(rf"total memory required for .*?\({_SIZE}\) exceeds available HBM \({_SIZE}\)")
_LONG = re.compile(rf"Used {_SIZE} of {_SIZE} hbm\. Exceeded hbm capacity by {_SIZE}\.")
_SINGLE = re.compile(
    r"Allocation \(size=(\d+)\) would exceed memory \(size=(\d+)\) :: \S+ "
    r"\[shape = '(\w+\[[\d,]*\])([^']*)', space=hbm,[^]]*?tag = '([^']*)'"
)
_OUTPUTS = re.compile(rf"^Output size {_SIZE}; shares {_SIZE} with arguments", re.MULTILINE)
_NAMED = r"^\s+{} +" + _SIZE

_PIECE = re.compile(r"^  \d+\. Size: ", re.MULTILINE)
_LABELS = (("Argument ", "argument"), ("Output ", "output"), ("constant", "constant"))

_CUSTOM = re.compile(r"Custom emitter for (\S+) not found")
_TARGET = re.compile(r'custom_call_target="([^"]+)"')
_OP_NAME = re.compile(r'op_name="([^"]+)"')
_OPCODE = re.compile(r"%[\w.-]+ = \S+ ([\w-]+)\(")
_SUSPECTED = re.compile(r"Suspected Python Code Location:\s+(\S.*?):(\d+)(?:\s|$)")
_SOURCE = re.compile(r'source_file="([^"]+)" source_line=(\d+)')
# Seen in pytorch/xla#6611, #7962 and #9524, on v5e and v4.
_VMEM = re.compile(r"Scoped allocation with size (?P<needed>[\d.]+)M and limit (?P<limit>[\d.]+)M exceeded scoped vmem")
_VMEM_USED = re.compile(r"memory space vmem\. Used (?P<needed>[\d.]+)M of (?P<limit>[\d.]+)M vmem")
VMEM = (
    "it needs {needed} of the memory on the chip (vmem), and may have {limit}. Make what it works on smaller (a sum or "
    "a window over a long dimension in parts, a kernel with smaller blocks), or raise the limit on the TPU: "
    "LIBTPU_INIT_ARGS=--xla_tpu_scoped_vmem_limit_kib=KIB"
)
_NOISE = re.compile(r"\s*(?:Suspected Python Code Location:|=== Source Location Trace).*", re.DOTALL)
LONGEST = 300
NO_NAME = "the program"  # where the compiler does not say which op it means


def too_large(text: str) -> bool:
    """It is the HBM that does not suffice (and not, say, the memory of a core)."""
    return _TOO_LARGE.search(text) is not None


def memory(text: str, available: int | None) -> HbmUsage | None:
    """The memory in a refusal for too little HBM; None where the text has an unknown format.

    `available`: what a program may have, where it is known better than from the text, which rounds to two decimals.
    `needed` is always above it. libtpu 0.0.21.1 does not count outputs, so they are added here.
    """
    if short := _SHORT.search(text):
        return _at_least(_size(*short.group(1, 2)), available or _size(*short.group(3, 4)))
    if found := _LONG.search(text):
        limit = available or _size(*found.group(3, 4))
        return _of_table(text, limit, limit + _size(*found.group(5, 6)))
    if single := _SINGLE.search(text):
        return _at_least(int(single[1]), available or int(single[2]))
    return None


def _at_least(needed: int, available: int) -> HbmUsage:
    return HbmUsage(needed=max(needed, available + 1), available=available)


def _of_table(text: str, available: int, used: int) -> HbmUsage:
    arguments, program, temporaries = (_row(text, name) for name in ("arguments", "program", "HLO temp"))
    found = _OUTPUTS.search(text)
    outputs, aliased = (_size(*found.group(1, 2)), _size(*found.group(3, 4))) if found else (None, None)
    total = (arguments or 0) + (program or 0) + (outputs or 0) - (aliased or 0)
    return HbmUsage(
        needed=max(used, total, available + 1),
        available=available,
        arguments=arguments,
        outputs=outputs,
        aliased=aliased,
        temporaries=temporaries,
        code=None if program is None else max(0, program - (temporaries or 0)),
    )


def _row(text: str, name: str) -> int | None:
    found = re.search(_NAMED.format(name), text, re.MULTILINE)
    return _size(*found.group(1, 2)) if found else None


def _size(number: str, unit: str) -> int:
    return round(float(number) * _UNITS[unit])


def buffers(text: str) -> tuple[Buffer, ...]:
    """The pieces that the long form lists, the largest first, with their rounded sizes; or the single one."""
    if single := _SINGLE.search(text):
        size, kind = int(single[1]), "output" if single[5].startswith("output") else "temporary"
        return (Buffer(size=size, plain=size, shape=single[3], layout=single[4], kind=kind, op=single[5], place=None),)
    found = (_buffer(one) for one in _pieces(text))
    return tuple(sorted((one for one in found if one is not None), key=lambda one: -one.size))


def _pieces(text: str) -> Iterator[dict[str, str]]:
    for piece in _PIECE.split(text)[1:]:
        lines = ("Size: " + piece.split("=====")[0]).splitlines()
        yield {name.strip(): value.strip() for name, colon, value in (line.partition(": ") for line in lines) if colon}


def _buffer(piece: dict[str, str]) -> Buffer | None:
    """None for code and the like, which have no shape."""
    size, shape = re.match(_SIZE, piece["Size"]), re.match(r"(\w+\[[\d,]*\])(?:(\{.*\}))?$", piece.get("Shape", ""))
    if size is None or shape is None:
        return None
    plain = re.match(_SIZE, piece.get("Unpadded size", "")) or size
    label, operator = piece.get("XLA label", ""), piece.get("Operator", "")
    name = _OP_NAME.search(operator)
    return Buffer(
        size=_size(*size.group(1, 2)),
        plain=_size(*plain.group(1, 2)),
        shape=shape[1],
        layout=shape[2] or "",
        kind=next((kind for start, kind in _LABELS if label.startswith(start)), "temporary"),
        op=name[1] if name else label.partition(" = ")[0],
        place=_place(operator),
    )


def refused(text: str) -> UnsupportedOp:
    """The op of any other refusal, as far as the compiler names it."""
    if on_chip := _VMEM.search(text) or _VMEM_USED.search(text):
        needed, limit = (f"{on_chip[place]} MiB" for place in ("needed", "limit"))
        return UnsupportedOp(_op(text), VMEM.format(needed=needed, limit=limit), "compiler", _place(text))
    if custom := _CUSTOM.search(text):
        return UnsupportedOp(custom[1], "the TPU compiler does not know this custom call", "custom", _place(text))
    return UnsupportedOp(_op(text), sentence(text), "compiler", _place(text))


def _op(text: str) -> str:
    found = (pattern.search(text) for pattern in (_OP_NAME, _TARGET, _OPCODE))
    return next((one[1] for one in found if one), NO_NAME)


def _place(text: str) -> SourceLine | None:
    found = _SUSPECTED.search(text) or _SOURCE.search(text)
    return SourceLine(found[1], int(found[2])) if found else None


def sentence(text: str) -> str:
    """Without "INVALID_ARGUMENT: ", and cut to a readable length."""
    text_line = " ".join(line.strip() for line in cleaned(text).splitlines() if line.strip())
    short = re.sub(r"^[A-Z_]+: (?:E\d+: )?|, metadata=\{.*", "", text_line)
    return short if len(short) <= LONGEST else f"{short[:LONGEST]} ..."


def cleaned(text: str) -> str:
    """The compiler's text without traces of its own sources."""
    return _NOISE.sub("", text).strip()
