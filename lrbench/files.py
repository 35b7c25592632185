"""Files that others may be reading: replaced in one step, and known by their content."""

import hashlib
import os
import secrets
from pathlib import Path


def write_atomic(path: Path, text: str) -> None:
    """Replace a file in one step: whoever reads sees the old text or the new one."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with aside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def lock_of(folder: Path, cache: Path) -> Path:
    """The file that who works on a folder locks. It lies in the cache, for a lock that is removed protects nobody.

    Raises:
        OSError: the cache cannot be written to.
    """
    name = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    (cache / "locks").mkdir(parents=True, exist_ok=True)
    return cache / "locks" / f"{name}.lock"


def write_new(path: Path, text: str) -> None:
    """Write a whole file where none is.

    Raises:
        FileExistsError: there is one, or one came while this was written.
    """
    if os.path.lexists(path):
        raise FileExistsError(f"{path} exists")
    aside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        write_atomic(aside, text)
        try:
            os.link(aside, path)  # unlike a rename, it replaces nothing
        except FileExistsError:
            raise
        except OSError:  # a file system without links
            os.rename(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def told(path: Path) -> str:
    """The path as text that any encoding of Unicode can hold, whatever the locale made of its bytes."""
    return str(path).encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def digest(path: Path) -> str:
    """The sha256 of a file's content."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            found.update(block)
    return found.hexdigest()
