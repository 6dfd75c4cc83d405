"""Hook of mkdocs: replaces links from docs/ to files outside by the files' names, since the site contains only docs/. Also changes `console varies`,
a marker for tests/python/test_tutorials.py, into a block type that mkdocs knows, and lets long names in tables break."""

import posixpath
import re
from typing import Any

_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")


_CELL = re.compile(r"<td[^>]*>.*?</td>", re.DOTALL)
_TEXT = re.compile(r"(?<=>)[^<>]+(?=<)")
_BREAK = re.compile(r"(?<=\w)([_/.,=:])(?=\w)")


def on_page_content(html: str, **_: Any) -> str:
    def broken(cell: re.Match[str]) -> str:
        return _TEXT.sub(lambda text: _BREAK.sub(r"\1<wbr>", text.group(0)), cell.group(0))

    return _CELL.sub(broken, html)


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    def rewritten(match: re.Match[str]) -> str:
        text, target = match.group(1), match.group(2)
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), target))
        if "://" in target or not path.startswith("../"):
            return match.group(0)
        name = path.removeprefix("../")
        return f"`{name}`" if text.strip("`") == name else f"{text} (`{name}`)"

    return _LINK.sub(rewritten, markdown).replace("```console varies\n", "```console\n")
