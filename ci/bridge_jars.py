"""Compiles scala-bridge/ into two jars, unless they are current: see ci/build_bridge.

    a jar's manifest has the current digest  ⟹  this compiler built it from the current sources
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from zipfile import BadZipFile, ZipFile, ZipInfo

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "scala-bridge" / "src"
MANIFEST = "META-INF/MANIFEST.MF"
#: A compiler that runs for seconds gains nothing from its own optimisation.
JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xss4m")
OPTIONS = ("-deprecation", "-feature", "-Xlint", "-Werror")


def main(java: str) -> None:
    """Build the jars that are missing or out of date."""
    spec = find_spec("pyspark")
    home = os.environ.get("SPARK_HOME") or str(Path(spec.origin).parent if spec else "")
    jars = Path(home) / "jars"
    names = " ".join(path.name for path in jars.glob("scala-compiler-*.jar"))
    compiler = re.search(r"scala-compiler-((\d+\.\d+)\.\S+)\.jar", names)
    if compiler is None:
        print(f"no Scala compiler in {jars}: the bridge is not built", file=sys.stderr)
        return
    version, binary = compiler.groups()
    package = ROOT / "pyspark_diff" / "jars" / f"pyspark_diff-bridge_{binary}.jar"
    tests = ROOT / "build" / "scala-bridge" / f"tests_{binary}.jar"
    sources = sorted(SOURCES.rglob("*.scala"))
    digest = digest_of(sources, f"{version} {' '.join(OPTIONS)} {Path(__file__).read_text()}")
    if made_from(package) == made_from(tests) == digest:
        return
    print(f"compiling the Scala bridge with Scala {version}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        compiled = Path(folder)
        path = os.path.join(jars, "*")
        subprocess.run(
            [java, *JVM, "-cp", path, "scala.tools.nsc.Main", *OPTIONS, "-classpath", path,
             "-d", folder, *map(str, sources)],
            check=True,
        )
        classes = sorted(file for file in compiled.rglob("*") if file.is_file())
        ours = {file for file in classes if not file.name.startswith("BridgeTests")}
        pack(package, compiled, sorted(ours), digest)
        pack(tests, compiled, sorted(set(classes) - ours), digest)


def digest_of(sources: Iterable[Path], how: str) -> str:
    """Return the digest of the sources, the compiler and its options."""
    digest = hashlib.sha256(how.encode())
    for source in sources:
        digest.update(f"\n{source.relative_to(SOURCES).as_posix()}\n".encode())
        digest.update(source.read_bytes())
    return digest.hexdigest()


def made_from(jar: Path) -> str:
    """Return the digest that a jar names, or an empty text without such a jar."""
    try:
        with ZipFile(jar) as opened:
            named = opened.read(MANIFEST).decode().partition("Sources-Digest: ")[2]
    except (OSError, KeyError, BadZipFile):
        return ""
    return "".join(named.split())


def pack(jar: Path, folder: Path, files: Iterable[Path], digest: str) -> None:
    """Write a jar atomically. The same files make the same bytes."""
    manifest = f"Manifest-Version: 1.0\r\nSources-Digest: {digest[:50]}\r\n {digest[50:]}\r\n\r\n"
    entries = [(MANIFEST, manifest.encode())]
    entries += [(file.relative_to(folder).as_posix(), file.read_bytes()) for file in files]
    jar.parent.mkdir(parents=True, exist_ok=True)
    # A running Spark may have the old jar open, so the new jar replaces it.
    new = jar.with_name(f".{jar.name}.{os.getpid()}")
    with ZipFile(new, "w") as opened:
        for name, content in entries:
            opened.writestr(ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content)
    new.replace(jar)


if __name__ == "__main__":
    main(*sys.argv[1:])
