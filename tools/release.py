"""Checks and prepares a release: one version everywhere, a changelog, and a README for the package index.

    python tools/release.py check [--tag TAG]   lists every fault, and exits with 1 if there is one
    python tools/release.py changelog           moves the fragments of changes/ into a section of CHANGELOG.md
    python tools/release.py changelog --check   prints that section and writes nothing
    python tools/release.py notes               prints the newest section of CHANGELOG.md, for the release page
    python tools/release.py readme              writes full addresses into the links of README.md, for the index

With `--tag`, which the release workflow uses, the changelog must be assembled and pyproject.toml must have the address
of the project. docs/releasing.md has the order of the steps.
"""

import argparse
import re
import sys
import textwrap
from datetime import date
from pathlib import Path

from wheels import version

ROOT = Path(__file__).resolve().parent.parent
FRAGMENTS = ROOT / "changes"
CHANGELOG = ROOT / "CHANGELOG.md"
README = ROOT / "README.md"
# Kinds of fragments and their headings, in the order of a section.
HEADINGS = {
    "prediction": "Changed predictions",
    "added": "Added",
    "changed": "Changed",
    "deprecated": "Deprecated",
    "removed": "Removed",
    "fixed": "Fixed",
    "security": "Security",
}
# Links and pictures of Markdown to files of the repository: the text before the address, and the address.
LINK = re.compile(r"((?:!\[[^\[\]]*)?\]\()(?!https?:|mailto:|#)([^()\s]+)(?=\))")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("check", "changelog", "notes", "readme"))
    parser.add_argument("--tag", help="The tag of the release: v and the version.")
    parser.add_argument("--check", action="store_true", help="Print the section of the changelog; write nothing.")
    arguments = parser.parse_args()
    fragments = {path.name: path.read_text(encoding="utf-8") for path in sorted(FRAGMENTS.glob("*.md"))}
    del fragments["README.md"]
    changelog = CHANGELOG.read_text(encoding="utf-8")
    if arguments.what == "check":
        faults = fragment_faults(fragments) + version_faults(version(), ROOT)
        if arguments.tag is not None:
            faults += tag_faults(arguments.tag, version(), fragments, changelog, home())
        end(faults)
        print(f"release: version {version()}, {len(fragments)} change fragments")
    elif arguments.what == "changelog":
        end(fragment_faults(fragments))
        whole = assembled(changelog, fragments, version(), date.today())
        if arguments.check:
            print(section(whole, version()))
        else:
            CHANGELOG.write_text(whole, encoding="utf-8")
            for name in fragments:
                (FRAGMENTS / name).unlink()
    elif arguments.what == "notes":
        print(section(changelog, version()))
    else:
        address = home()
        if address is None:
            sys.exit("release: pyproject.toml has no `Repository` in [project.urls], so links cannot be completed")
        text = README.read_text(encoding="utf-8")
        README.write_text(complete_links(text, address, f"v{version()}"), encoding="utf-8")


def end(faults: list[str]) -> None:
    """Exit with these faults, if there are any."""
    if faults:
        sys.exit("\n".join(f"release: {fault}" for fault in faults))


# The changelog


def fragment_faults(fragments: dict[str, str]) -> list[str]:
    """Return the faults of fragments by file name: their names, texts and links."""
    faults = []
    for name, text in fragments.items():
        if not re.fullmatch(rf"[a-z0-9-]+\.({'|'.join(HEADINGS)})\.md", name):
            faults.append(f"changes/{name}: the name is not NAME.KIND.md; kinds: {', '.join(HEADINGS)}")
        if not text.strip():
            faults.append(f"changes/{name} is empty")
        for link in LINK.finditer(text):
            if not (ROOT / link[2].partition("#")[0]).exists():
                faults.append(f"changes/{name} links to {link[2]}, which does not exist beside CHANGELOG.md")
    return faults


def assembled(changelog: str, fragments: dict[str, str], version: str, day: date) -> str:
    """Return the changelog with a new section of a version, made from fragments, above earlier versions."""
    if section(changelog, version):
        sys.exit(f"release: CHANGELOG.md has a section {version} already: choose the next version")
    parts = [f"## {version} - {day.isoformat()}"]
    for kind, heading in HEADINGS.items():
        items = [item(text) for name, text in fragments.items() if name.endswith(f".{kind}.md")]
        if items:
            parts += [f"### {heading}", "\n".join(items)]
    before, *after = re.split(r"^(?=## )", changelog, maxsplit=1, flags=re.MULTILINE)
    return "\n\n".join([before.strip(), *parts, *(text.strip() for text in after)]) + "\n"


def item(fragment: str) -> str:
    """Return a fragment as a list item."""
    return "- " + textwrap.indent(fragment.strip(), "  ").lstrip()


def section(changelog: str, version: str) -> str:
    """Return the section of a version."""
    match = re.search(rf"^## {re.escape(version)} - .*?(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    return "" if match is None else match[0].strip()


# Versions and addresses


def version_faults(version: str, root: Path) -> list[str]:
    """Return the files whose version differs from that of Cargo.toml."""
    cited = re.search(r"^version: (.+)$", (root / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    locked = re.findall(
        r'^name = "(gradtide-\w+)"\nversion = "(.+)"$', (root / "Cargo.lock").read_text(encoding="utf-8"), re.MULTILINE
    )
    found = {"CITATION.cff": cited[1] if cited else "none", **{f"Cargo.lock, {name}": one for name, one in locked}}
    return [f"{where}: version {one}; Cargo.toml has {version}" for where, one in found.items() if one != version]


def tag_faults(tag: str, version: str, fragments: dict[str, str], changelog: str, home: str | None) -> list[str]:
    """Return the reasons why this tag cannot be released."""
    faults = []
    if tag != f"v{version}":
        faults.append(f"the tag is {tag}, and the version is {version}")
    if fragments:
        faults.append(f"changes/ still has {len(fragments)} fragments: run `python tools/release.py changelog`")
    if not section(changelog, version):
        faults.append(f"CHANGELOG.md has no section {version}")
    if home is None:
        faults.append("pyproject.toml has no `Repository` in [project.urls]")
    return faults


def home() -> str | None:
    """Return the address of the repository, or None if pyproject.toml has none yet."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    match = re.search(r'^\[project\.urls\]\n(?:.+\n)*?Repository = "(.+?)/?"$', text, re.MULTILINE)
    return None if match is None else match[1]


def complete_links(text: str, home: str, tag: str) -> str:
    """Return Markdown with full addresses in links to files of the repository, for pages outside of it."""

    def complete(link: re.Match[str]) -> str:
        kind = "raw" if link[1].startswith("!") else "blob"
        return f"{link[1]}{home}/{kind}/{tag}/{link[2]}"

    return LINK.sub(complete, text)


if __name__ == "__main__":
    main()
