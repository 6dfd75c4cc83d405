"""Reads treadle.h: its functions, structs and enums, and what comments say about NULL and lifetimes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

HEADER = Path(__file__).parents[2] / "include" / "treadle" / "treadle.h"

_LIFETIME = re.compile(r"must (?:also )?(?:outlive|live|not be used after|be released before|stay alive)")
_SCALARS = {"int", "int32_t", "int64_t", "uint32_t", "uint64_t", "size_t", "double"}


@dataclass
class Parameter:
    """A parameter of a function, or a field of a struct."""

    name: str
    type: str  # such as "const treadle_value* const*"; "callback" for pointers to functions
    count: str = ""  # the parameter that contains its number of elements
    counts: list[str] = field(default_factory=list)  # the parameters whose number of elements this is

    @property
    def base(self) -> str:
        return self.type.replace("const", "").replace("*", "").strip()

    @property
    def depth(self) -> int:
        return self.type.count("*")


@dataclass
class Function:
    name: str
    returns: str
    parameters: list[Parameter]
    comment: str

    def sentences(self) -> list[str]:
        return re.split(r"(?<=\.)\s+", self.comment)

    def may_be_null(self, parameter: Parameter) -> bool:
        """True if the header says that this parameter may be NULL."""
        said = rf"`\*?{parameter.name}[`(]"
        return parameter.name == "context" or any("NULL" in sentence and re.search(said, sentence) for sentence in self.sentences())

    def outlived_by(self) -> list[Parameter]:
        """Returns the parameters that must outlive the object that the function makes, or its first parameter if it makes none."""
        found: list[Parameter] = []
        for sentence in self.sentences():
            if _LIFETIME.search(sentence):
                found += [p for p in self.parameters if re.search(rf"\b{p.name}\b", sentence)] or self.parameters
        return found


@dataclass
class Header:
    functions: dict[str, Function]
    structs: dict[str, list[Parameter]]
    enums: dict[str, dict[str, int]]
    handles: set[str]

    def is_handle(self, parameter: Parameter) -> bool:
        return parameter.base in self.handles and parameter.depth == 1


def _declaration(text: str) -> Parameter:
    text = " ".join(text.split())
    callback = re.search(r"\(\s*\*\s*(\w+)\s*\)\s*\(", text)
    if callback:
        return Parameter(callback[1], "callback")
    match = re.fullmatch(r"(.*?)(\w+)(\[\d+\])?", text)
    assert match, text
    return Parameter(match[2], match[1].strip() + (match[3] or ""))


def _split(text: str) -> list[str]:
    """Splits at commas outside of parentheses."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if c == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [*parts, text[start:]] if text.strip() not in ("", "void") else []


def _tie_counts(parameters: list[Parameter], structs: set[str]) -> None:
    """Links counts with lists: a size_t counts the lists right before it; num_outputs and num_gradients also count the lists for results after
    them."""
    for i, parameter in enumerate(parameters):
        if parameter.type != "size_t":
            continue
        before = i - 1
        while before >= 0 and _is_list(parameters[before], structs) and not parameters[before].count:
            parameters[before].count = parameter.name
            parameter.counts.append(parameters[before].name)
            before -= 1
        if i + 1 < len(parameters) and parameters[i + 1].type == "treadle_value**" and parameter.name.startswith("num_"):
            parameters[i + 1].count = parameter.name
            parameter.counts.append(parameters[i + 1].name)


def _is_list(parameter: Parameter, structs: set[str]) -> bool:
    if parameter.depth == 2:
        return parameter.type.endswith("* const*")
    if parameter.depth != 1 or parameter.type.endswith("char*"):
        return False
    return parameter.base in structs or (parameter.base in {"void", "int64_t", "double"} and parameter.name != "context")


def _comment_text(comment: str) -> str:
    return " ".join(re.sub(r"^\s*/\*|\*/\s*$|^\s*\*(?!/)", " ", comment, flags=re.MULTILINE).split())


def parse(path: Path = HEADER) -> Header:
    text = path.read_text()
    plain = re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)
    enums = {}
    for body, name in re.findall(r"typedef enum \w+ \{(.*?)\} (\w+);", plain, re.DOTALL):
        enums[name] = {key: int(value) for key, value in re.findall(r"(\w+)\s*=\s*(-?\d+)", body)}
    structs = {}
    for body, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", plain, re.DOTALL):
        fields = []
        for line in body.split(";"):
            declared = _split(line)
            fields += [_declaration(part if k == 0 else f"{declared[0].split()[0]} {part}") for k, part in enumerate(declared)]
        structs[name] = fields
    opaque = set(re.findall(r"typedef struct (\w+) \1;", plain))
    for fields in structs.values():
        _tie_counts(fields, set(structs))
    functions = {}
    comment = ""
    pattern = r"/\*.*?\*/|TREADLE_C_API\s+([^;(]*?)(\w+)\(((?:[^();]|\([^()]*\)|\([^()]*\([^()]*\)[^()]*\))*)\);[ \t]*(/\*[^\n]*\*/)?|\n[ \t]*\n"
    for match in re.finditer(pattern, text, re.DOTALL):
        if match[0].startswith("/*"):
            comment = _comment_text(match[0])
        elif not match[0].strip():
            comment = ""  # a comment applies to all declarations up to the next empty line
        else:
            parameters = [_declaration(re.sub(r"/\*.*?\*/", "", part)) for part in _split(match[3])]
            _tie_counts(parameters, set(structs))
            said = f"{comment} {_comment_text(match[4] or '')}".strip()
            functions[match[2]] = Function(match[2], match[1].strip(), parameters, said)
    for function in functions.values():  # a comment such as "as treadle_trainer_parameter" refers to the comment of another function
        for other in re.findall(r"\b[Aa]s (treadle_\w+)", function.comment):
            if other in functions and other != function.name:
                function.comment += " " + functions[other].comment
    return Header(functions, structs, enums, opaque)
