"""How profiles and plans show themselves in a notebook: the table as text, and the page in a frame of its own."""

from __future__ import annotations

import html

_MOST_BYTES = 8_000_000  # of a page: notebooks keep what they show in their file


def shown(table: str, page: bytes) -> str:
    """HTML for `_repr_html_`. The page's scripts run in the frame only; a notebook that is not trusted shows the table."""
    text = f'<pre style="overflow-x: auto; line-height: 1.25">{html.escape(table)}</pre>'
    if len(page) > _MOST_BYTES:
        return text + f'<p>The page has {len(page) / 1e6:.0f} MB: write it with <code>save("report.html")</code>.</p>'
    frame = 'sandbox="allow-scripts" style="width: 100%; height: 720px; border: 1px solid #8884; border-radius: 6px"'
    return text + f'<iframe title="Profile" {frame} srcdoc="{html.escape(page.decode())}"></iframe>'
