"""Builds the package with the standard library alone (PEP 517), so that `pip install ./clients/python` needs no network.

The package is pure Python without dependencies: its wheel is its files, what `pyproject.toml` says of it, and a list of
checksums. Nothing is written beside the sources.
"""

import base64
import hashlib
import io
import os
import re
import tarfile
import zipfile

HOME = os.path.dirname(os.path.abspath(__file__))
#: The date of every file in a wheel, so that wheels of the same sources by the same Python are the same.
DATE = (2020, 1, 1, 0, 0, 0)


def _project():
    """The texts of the table [project]. Only lines of the form `name = "text"` are needed."""
    with open(os.path.join(HOME, "pyproject.toml"), encoding="utf-8") as file:
        table = file.read().split("[project]\n", 1)[1].split("\n[", 1)[0]
    return dict(re.findall(r'^([a-z-]+) = "([^"]*)"$', table, re.MULTILINE))


def _metadata():
    project = _project()
    with open(os.path.join(HOME, "README.md"), encoding="utf-8") as file:
        readme = file.read()
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {project['name']}",
        f"Version: {project['version']}",
        f"Summary: {project['description']}",
        f"Requires-Python: {project['requires-python']}",
        f"License: {project['license']}",
        "Classifier: Programming Language :: Python :: 3 :: Only",
        "Classifier: Typing :: Typed",
        "Description-Content-Type: text/markdown",
    ]
    return "\n".join(lines) + "\n\n" + readme


def _sources():
    """The files of the package, by the name that they are installed under."""
    package = os.path.join(HOME, "quorate")
    for name in sorted(os.listdir(package)):
        if name.endswith(".py") or name == "py.typed":
            with open(os.path.join(package, name), "rb") as file:
                yield f"quorate/{name}", file.read()


def _prefix():
    project = _project()
    return f"{project['name']}-{project['version']}"


def _wheel(directory, files):
    name = f"{_prefix()}-py3-none-any.whl"
    info = f"{_prefix()}.dist-info"
    files = list(files) + [
        (f"{info}/METADATA", _metadata().encode()),
        (f"{info}/WHEEL", b"Wheel-Version: 1.0\nGenerator: quorate\nRoot-Is-Purelib: true\nTag: py3-none-any\n"),
    ]
    record = []
    with zipfile.ZipFile(os.path.join(directory, name), "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, content in files:
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record.append(f"{path},sha256={digest},{len(content)}")
            _add(wheel, path, content)
        record.append(f"{info}/RECORD,,")
        _add(wheel, f"{info}/RECORD", ("\n".join(record) + "\n").encode())
    return name


def _add(wheel, path, content):
    entry = zipfile.ZipInfo(path, DATE)
    entry.external_attr = 0o644 << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    wheel.writestr(entry, content)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """What `pip install` asks for."""
    return _wheel(wheel_directory, _sources())


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """What `pip install --editable` asks for: a wheel that points here."""
    return _wheel(wheel_directory, [("quorate.pth", (HOME + "\n").encode())])


def build_sdist(sdist_directory, config_settings=None):
    """The sources as they are."""
    name = f"{_prefix()}.tar.gz"
    files = list(_sources())
    for other in ("pyproject.toml", "README.md", "backend.py"):
        with open(os.path.join(HOME, other), "rb") as file:
            files.append((other, file.read()))
    files.append(("PKG-INFO", _metadata().encode()))
    with tarfile.open(os.path.join(sdist_directory, name), "w:gz") as archive:
        for path, content in files:
            entry = tarfile.TarInfo(f"{_prefix()}/{path}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return name
