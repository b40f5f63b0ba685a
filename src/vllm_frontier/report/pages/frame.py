"""What all pages share: templates, escaping, colours, style and script.

A page is one file: style and script stand in it, and its policy lets it load nothing.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from vllm_frontier import __version__
from vllm_frontier.characters import printable
from vllm_frontier.report.pages import markdown, tabular
from vllm_frontier.report.plots import theme

_HERE = Path(__file__).parent
_ID = re.compile(r"""(\bid="|url\(#|url\(&quot;#|href="#)""")


def html(template: str, context: Mapping[str, Any]) -> str:
    """A page of HTML.

    Args:
        template: a file of this folder that ends with `.html.j2`.
        context: what it names. Every text is escaped; nothing in it is taken for markup.
    """
    script = _read("script.js")
    shared = {
        "style": Markup(_read("style.css")),
        "script": Markup(script),
        "policy": _policy(script),
        "light": theme.LIGHT,
        "dark": theme.DARK,
        "version": __version__,
    }
    written = _environment().get_template(template).render({**shared, **context})
    return printable(written, lines=True)


def markdown_page(template: str, context: Mapping[str, Any]) -> str:
    """A page of GitHub-flavoured Markdown.

    Args:
        template: a file of this folder that ends with `.md.j2`.
        context: what it names. Every text is escaped, but for `markdown.Plain`.
    """
    written = _markdown_environment().get_template(template).render({**context})
    return printable(re.sub(r"\n{3,}", "\n\n", written).strip(), lines=True) + "\n"


def svg(template: str, context: Mapping[str, Any]) -> str:
    """A picture around others.

    Args:
        template: a file of this folder that ends with `.svg.j2`.
        context: as `html` has it.
    """
    return printable(_environment().get_template(template).render(context), lines=True)


def inlined(svg: str, prefix: str) -> Markup:
    """A picture of `render.panels` for a page that has others: its ids begin with `prefix`.

    Args:
        svg: from our own charts, never from elsewhere: it is not escaped.
        prefix: different for every picture of the page.
    """
    return Markup(_ID.sub(lambda found: f"{found[1]}{prefix}-", svg))


def _policy(script: str) -> str:
    """What the page may do: run the one script that it brings, and load nothing."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return "; ".join(
        [
            "default-src 'none'",
            "style-src 'unsafe-inline'",
            f"script-src 'sha256-{digest}'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )


@cache
def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(tabular.FILTERS)
    return environment


@cache
def _markdown_environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=False,  # Markdown has an escaping of its own
        finalize=markdown.escaped,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update({**tabular.FILTERS, **markdown.FILTERS})
    return environment
