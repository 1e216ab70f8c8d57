"""Hooks of MkDocs: they make the forge's Markdown into pages, and check every link of the pages."""

import html.parser
import os
import posixpath
import re
import urllib.parse

from mkdocs.exceptions import PluginError

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
FORGE = "https://github.com/rabbitdelay/rabbitdelay"
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
FENCE = re.compile(r"(?ms)^( *)```.*?^ *```$")
# Pages whose sources are not in docs.
MOVED = {
    "index.md": "README.md",
    "zh-CN/index.md": "README.zh-CN.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "SECURITY.md": "SECURITY.md",
}


def source_of(page):
    return MOVED.get(page, posixpath.join("docs", page))


PAGE_OF = {source: page for page, source in MOVED.items()}


def page_of(source):
    """Returns the file below the site's folder for a file of the repository, or None."""
    if source in PAGE_OF:
        return PAGE_OF[source]
    if source.startswith("docs/") and not source.startswith("docs/site/"):
        return source[len("docs/"):]
    return None


def github_slug(heading, separator="-"):
    """The anchor that a forge gives to a heading."""
    return re.sub(r"[^\w -]", "", heading.strip().lower()).replace(" ", separator)


def heading_of(file):
    with open(file, encoding="utf-8") as f:
        return re.search(r"(?m)^#+ +(.+)$", f.read()).group(1).replace("`", "")


def expand(nav, docs):
    """Puts the documents of a folder, under their headings, in place of its line that ends in /*."""
    if isinstance(nav, dict):
        return {name: expand(entry, docs) for name, entry in nav.items()}
    if not isinstance(nav, list):
        return nav
    lines = []
    for entry in nav:
        if isinstance(entry, str) and entry.endswith("/*"):
            folder = entry[:-2]
            names = sorted(n for n in os.listdir(os.path.join(docs, folder)) if n.endswith(".md") and n != "README.md")
            lines += [{heading_of(os.path.join(docs, folder, n)): posixpath.join(folder, n)} for n in names]
        else:
            lines.append(expand(entry, docs))
    return lines


def on_config(config):
    config["nav"] = expand(config["nav"], config["docs_dir"])
    config["mdx_configs"].setdefault("toc", {})["slugify"] = github_slug
    return config


def on_page_markdown(markdown, page, **_):
    source = source_of(page.file.src_path.replace(os.sep, "/"))
    here = posixpath.dirname(page.file.src_path.replace(os.sep, "/"))

    def relink(m):
        target, anchor = urllib.parse.urldefrag(m.group(2))
        if "://" in target or target.startswith("mailto:") or not target:
            return m.group(0)
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        found = page_of(file)
        full = os.path.join(ROOT, file)
        if found is None or os.path.isdir(full):
            if not os.path.exists(full):
                raise PluginError(f"{source} links to {m.group(2)}, which does not exist")
            kind = "tree" if os.path.isdir(full) else "blob"
            link = f"{FORGE}/{kind}/main/{file}"
        else:
            link = posixpath.relpath(found, here or ".")
        return m.group(1) + link + ("#" + anchor if anchor else "") + m.group(3)

    out, last = [], 0
    for m in FENCE.finditer(markdown):
        out += [LINK.sub(relink, indent(markdown[last:m.start()])), m.group(0)]
        last = m.end()
    out.append(LINK.sub(relink, indent(markdown[last:])))
    return "".join(out)


def indent(text):
    """Indents what continues an entry of a list by four spaces, as Python's Markdown wants it."""
    return re.sub(r"(?m)^ {2,3}(?=\S)", "    ", text)


class Links(html.parser.HTMLParser):
    """Collects the anchors and the links of a page."""

    def __init__(self):
        super().__init__()
        self.ids, self.links = set(), []

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if attrs.get("id"):
            self.ids.add(attrs["id"])
        for name in ("href", "src"):
            if attrs.get(name):
                self.links.append(attrs[name])


def on_post_build(config, **_):
    site = config["site_dir"]
    pages = {}
    for folder, _dirs, names in os.walk(site):
        for name in names:
            if name.endswith(".html") and name != "404.html":
                parser = Links()
                with open(os.path.join(folder, name), encoding="utf-8") as f:
                    parser.feed(f.read())
                pages[os.path.join(folder, name)] = parser
    wrong = []
    for file, parser in pages.items():
        for link in parser.links:
            url = urllib.parse.urlsplit(link)
            if url.scheme or url.netloc:
                continue
            target = file
            if url.path:
                target = os.path.normpath(os.path.join(os.path.dirname(file), urllib.parse.unquote(url.path)))
            if os.path.isdir(target):
                target = os.path.join(target, "index.html")
            anchor = urllib.parse.unquote(url.fragment)
            if not os.path.exists(target):
                wrong.append(f"{os.path.relpath(file, site)} links to {link}, which does not exist")
            elif anchor and target in pages and anchor not in pages[target].ids:
                wrong.append(f"{os.path.relpath(file, site)} links to {link}, and no heading there has that anchor")
    if wrong:
        raise PluginError("\n".join(sorted(set(wrong))))
