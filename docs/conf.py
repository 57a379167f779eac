"""How Sphinx makes the site from the pages in docs/: `make docs` writes it to build/docs.

The pages are read on the site and in the repository. A link to a file outside docs/ becomes a link to the source. It is
checked as the links between pages are: the file exists, and a heading of a Markdown file has the anchor.
"""

import re
import textwrap
from pathlib import Path

from docutils import nodes
from pygments.lexers.special import TextLexer  # pyright: ignore[reportMissingTypeStubs] - it has none
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util import logging

from tenure.errors import DOCS as SITE

DOCS = Path(__file__).parent
ROOT = DOCS.parent

SOURCE = "https://github.com/tenure-locks/tenure"
LINK = re.compile(r"(?<=\]\()(\.\./[^)#\s]*)(?:#([^)\s]*))?(?=\))")
ARGUMENTS = re.compile(r"^Args:\n((?:    .*\n?|\n)+)", re.MULTILINE)

project = "Tenure"
author = "The Tenure authors"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_heading_anchors = 4
default_role = "code"  # a docstring has names between single backticks, as Markdown does
autodoc_default_options = {
    "members": True,
    "inherited-members": "BaseException, Exception, OSError, ValueError, object, str",
}
autodoc_member_order = "bysource"
html_theme = "furo"
html_title = "Tenure"
html_copy_source = False
html_show_copyright = False
html_static_path = ["static"]
html_css_files = ["site.css"]
html_theme_options = {"source_repository": SOURCE, "source_branch": "main", "source_directory": "docs/"}


def anchors(page: Path) -> set[str]:
    """Return the anchors that the repository's site gives to the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def link_to_source(_app: Sphinx, page: str, source: list[str]) -> None:
    """Turn the links of a page to files outside docs/ into links to the source; warn of one that leads nowhere."""

    def replace(link: re.Match[str]) -> str:
        path = (DOCS / page).parent.joinpath(link[1]).resolve()
        if path.is_relative_to(DOCS):
            return link[0]
        if not path.exists() or (link[2] and link[2] not in anchors(path)):
            logging.getLogger(__name__).warning("the link %s leads nowhere", link[0], location=page)
        kind = "tree" if path.is_dir() else "blob"
        return f"{SOURCE}/{kind}/main/{path.relative_to(ROOT)}{f'#{link[2]}' if link[2] else ''}"

    source[0] = LINK.sub(replace, source[0])


def list_arguments(_app: Sphinx, _what: str, _name: str, _value: object, _options: object, lines: list[str]) -> None:
    """Turn the section `Args:` of a docstring into a list of fields."""

    def fields(section: re.Match[str]) -> str:
        return re.sub(r"^(\w+):", r":param \1:", textwrap.dedent(section[1]), flags=re.MULTILINE)

    lines[:] = ARGUMENTS.sub(fields, "\n".join(lines)).split("\n")


def write_for_programs(app: Sphinx, error: Exception | None) -> None:
    """Write `llms.txt`, which lists the pages as the contents do, and `llms-full.txt`, which has their text."""
    if error is not None or app.builder.name != "html":
        return
    index = app.env.get_doctree("index")
    lines = [f"# {project}", "", f"> {next(index.findall(nodes.paragraph)).astext()}".replace("\n", " ")]
    texts: list[str] = []
    for contents in index.findall(addnodes.toctree):
        lines += ["", f"## {contents['caption']}", ""]
        for page in contents["includefiles"]:
            first = next(app.env.get_doctree(page).findall(nodes.paragraph)).astext().replace("\n", " ")
            lines.append(f"- [{app.env.titles[page].astext()}]({SITE}{page}.html): {re.split(r'(?<=[.:]) ', first)[0]}")
            texts.append(Path(app.env.doc2path(page)).read_text("utf-8"))
    Path(app.outdir, "llms.txt").write_text("\n".join(lines) + "\n", "utf-8")
    Path(app.outdir, "llms-full.txt").write_text("\n".join(texts), "utf-8")


def setup(app: Sphinx) -> None:
    """Register what this file adds to Sphinx."""
    app.connect("source-read", link_to_source)
    app.connect("autodoc-process-docstring", list_arguments)
    app.connect("build-finished", write_for_programs)
    for language in ("crontab", "redis"):
        app.add_lexer(language, TextLexer)
