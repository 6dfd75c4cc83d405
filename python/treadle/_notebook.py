"""Shows profiles and plans in a notebook: as a text table, and as a page in a frame."""

from __future__ import annotations

import html

_MOST_BYTES = 8_000_000  # largest page that is shown: a notebook's file contains everything that the notebook shows


def shown(table: str, page: bytes) -> str:
    """Returns HTML for `_repr_html_`. The page's scripts run only within the frame; a notebook that is not trusted shows only the table."""
    text = f'<pre style="overflow-x: auto; line-height: 1.25">{html.escape(table)}</pre>'
    if len(page) > _MOST_BYTES:
        return text + f'<p>The page has {len(page) / 1e6:.0f} MB: write it with <code>save("report.html")</code>.</p>'
    frame = 'sandbox="allow-scripts" style="width: 100%; height: 720px; border: 1px solid #8884; border-radius: 6px"'
    return text + f'<iframe title="Profile" {frame} srcdoc="{html.escape(page.decode())}"></iframe>'
