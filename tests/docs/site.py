"""Hooks of MkDocs, for `make site`: pages from outside `docs/`, and links between them.

The documents are written for readers of the repository: they link to files where these are. In the site, the pages of
`docs/` are at the top, beside those of the repository's top folder. The README, which would be the index there, is
`about.md`. A link to what is not in the site becomes plain text.
"""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import dirname, join, normpath, relpath
from typing import Any

ROOT = Path(__file__).parents[2]
ADDED = {
    "README.md": "about.md",
    "ARCHITECTURE.md": "ARCHITECTURE.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "examples/home_security/README.md": "examples/home_security/README.md",
}
"""Pages from outside of `docs/`: their path in the repository, and in the site."""

_FENCE = re.compile(r"^(```[a-z]+) (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CODE_OR_LINK = re.compile(
    r"^```.*?^```$|`[^`\n]*`|(?P<mark>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)", re.MULTILINE | re.DOTALL
)


def on_files(files: Any, config: Any) -> Any:
    kind = type(next(iter(files)))
    for path, here in ADDED.items():
        files.append(kind.generated(config, here, content=(ROOT / path).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    here = page.file.src_uri
    repository = {site: path for path, site in ADDED.items()}
    return for_site(markdown, repository.get(here, f"docs/{here}"))


def for_site(markdown: str, path: str) -> str:
    """The page at this path of the repository, as the site has it."""
    text = _CODE_OR_LINK.sub(lambda found: found[0] if found["target"] is None else _link(found, path), markdown)
    return _FENCE.sub(r'\1 title="\2"' + "\n" + r"\3```", text)


def _link(link: re.Match[str], path: str) -> str:
    mark, text, target = link["mark"], link["text"], link["target"]
    file, hash_, anchor = target.partition("#")
    if "://" in target or not file:
        return link[0]
    there = normpath(join(dirname(path), file))
    if (at := site_path(there)) is None:
        return f"{text} (`{there}` in the repository)"
    here = site_path(path)
    assert here is not None, path
    return f"{mark}[{text}]({relpath(at, dirname(here) or '.')}{hash_}{anchor})"


def site_path(path: str) -> str | None:
    """Where the site has this file of the repository; None when it does not."""
    return path.removeprefix("docs/") if path.startswith("docs/") else ADDED.get(path)
