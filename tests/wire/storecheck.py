# SPDX-License-Identifier: Apache-2.0
"""Whether a store on the disk is what store/FORMAT.md promises, seen without recask's own code.

    bytes_behind_rows(store)   right after a crash, with nobody in it: no row points at bytes that are missing or wrong (S2)
    whole_store(store)         after a start and a stop: that, every sum exact, and nothing left over
Both raise AssertionError with what they found. They work on a copy of the catalog, so that they change nothing.
    Given                      clients that remember what they got
"""
import ctypes
import hashlib
import json
import os
import re
import shutil
import sqlite3
import subprocess
import tempfile
import time

from mock import sha256
from runner import equal

_xxhash = ctypes.CDLL("libxxhash.so.0")
_xxhash.XXH3_64bits.restype = ctypes.c_uint64
_xxhash.XXH3_64bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]

# Lines of a log that tell of damage, which no crash may do.
DAMAGE = re.compile(r"fails its checksum|ev=pack\.missing|instead of \d+|is gone")

# What must be equal in every catalog: names and the SQL of two numbers, or of rows that must not be there.
EQUAL = {
    "totals of chunks": ("SELECT chunks, chunk_bytes, frame_bytes FROM totals",
                         "SELECT count(*), coalesce(sum(raw), 0), coalesce(sum(len), 0) FROM chunk WHERE pack_id IS NOT NULL"),
    "totals of layers": ("SELECT canonical_layers, canonical_bytes FROM totals",
                         "SELECT count(*), coalesce(sum(size), 0) FROM canonical WHERE present = 1"),
    "totals of blobs": ("SELECT blobs, original_bytes FROM totals",
                        "SELECT count(*), coalesce(sum(size * original_present), 0) FROM blob"),
    "totals of manifests": ("SELECT manifests, tags FROM totals",
                            "SELECT (SELECT count(*) FROM manifest), (SELECT count(*) FROM tag)"),
}
NONE = {
    "chunk.refs is not the number of recipe rows (C1)":
        "SELECT id, refs FROM chunk c WHERE refs <> (SELECT count(*) FROM recipe WHERE chunk_id = c.id)",
    "a recipe names a chunk that is not there":
        "SELECT canonical_id, off FROM recipe WHERE chunk_id NOT IN (SELECT id FROM chunk)",
    "a recipe of a layer that is not present (C5)":
        "SELECT canonical_id FROM recipe r JOIN canonical c ON c.id = r.canonical_id WHERE c.present = 0",
    "the chunks of a layer are not its size":
        "SELECT id, size FROM canonical c WHERE present = 1 AND size <> (SELECT coalesce(sum(k.raw), -1) FROM recipe r"
        " JOIN chunk k ON k.id = r.chunk_id WHERE r.canonical_id = c.id)",
    "the frames of a layer are not its zstd form":
        "SELECT id, zsize FROM canonical c WHERE present = 1 AND zsize <> (SELECT coalesce(sum(k.len), -1) FROM recipe r"
        " JOIN chunk k ON k.id = r.chunk_id WHERE r.canonical_id = c.id)",
    "a chunk without bytes, though none were lost": "SELECT id FROM chunk WHERE pack_id IS NULL",
    "frames that overlap":
        "SELECT a.id, b.id FROM chunk a JOIN chunk b ON a.pack_id = b.pack_id AND a.id <> b.id"
        " AND b.off >= a.off AND b.off < a.off + a.len",
    "a frame behind its pack's end":
        "SELECT c.id FROM chunk c JOIN pack p ON p.id = c.pack_id WHERE c.off + c.len > p.end",
    "an original without sums":
        "SELECT id FROM blob WHERE original_present = 1 AND id NOT IN (SELECT blob_id FROM original)",
}
LEFT_OVER = {
    "holes not punched": "SELECT id FROM hole",
    "chunks that nobody uses": "SELECT id FROM chunk WHERE refs = 0",
}


def fail(store, what):
    raise AssertionError(f"{store}: {what}")


def _open_copy(store, directory):
    for name in ("catalog.db", "catalog.db-wal"):
        path = os.path.join(store, name)
        if os.path.exists(path):
            shutil.copy(path, os.path.join(directory, name))
    return sqlite3.connect(os.path.join(directory, "catalog.db"))


def _original_path(store, digest):
    return os.path.join(store, "originals", digest.hex()[:2], digest.hex())


def _check_originals(store, db):
    for digest, size in db.execute("SELECT digest, size FROM blob WHERE original_present = 1"):
        try:
            with open(_original_path(store, digest), "rb") as file:
                data = file.read()
        except FileNotFoundError:
            fail(store, f"original {digest.hex()} is gone")
        if len(data) != size or hashlib.sha256(data).digest() != digest:
            fail(store, f"original {digest.hex()} has {len(data)} bytes of {size}, or wrong ones")


def _check_frames(store, db):
    packs = {}
    for pack, off, size, total, digest in db.execute(
            "SELECT pack_id, off, len, sum, digest FROM chunk WHERE pack_id IS NOT NULL AND refs > 0"):
        if pack not in packs:
            try:
                with open(os.path.join(store, "packs", f"{pack:016x}.pack"), "rb") as file:
                    packs[pack] = file.read()
            except FileNotFoundError:
                fail(store, f"pack {pack} is gone, chunk {digest.hex()} was in it")
        frame = packs[pack][off:off + size]
        if len(frame) != size or _xxhash.XXH3_64bits(frame, size) != total % (1 << 64):
            fail(store, f"chunk {digest.hex()}: its {size} bytes at {off} of pack {pack} ({len(packs[pack])}) are wrong")


def _check_manifests(store, db):
    for digest, body in db.execute("SELECT digest, body FROM manifest"):
        if hashlib.sha256(body).digest() != digest:
            fail(store, f"manifest {digest.hex()} has a wrong body")


def _check_catalog(store, db):
    for pragma in ("integrity_check", "foreign_key_check"):
        found = db.execute(f"PRAGMA {pragma}").fetchall()
        if found not in ([("ok",)], []):
            fail(store, f"{pragma}: {found[:5]}")
    for what, (one, other) in EQUAL.items():
        got, want = db.execute(one).fetchall(), db.execute(other).fetchall()
        if got != want:
            fail(store, f"{what}: {got}, counted {want}")
    for what, query in NONE.items():
        found = db.execute(query).fetchmany(5)
        if found:
            fail(store, f"{what}: {found}")


def _check_left_over(store, db):
    for what, query in LEFT_OVER.items():
        found = db.execute(query).fetchmany(5)
        if found:
            fail(store, f"{what}: {found}")
    wanted = {_original_path(store, digest) for digest, in db.execute("SELECT digest FROM blob WHERE original_present = 1")}
    ends = {f"{pack:016x}.pack": end for pack, end in db.execute("SELECT id, end FROM pack")}
    for folder, _, names in os.walk(os.path.join(store, "originals")):
        for name in names:
            if os.path.join(folder, name) not in wanted:
                fail(store, f"originals/{name}: no row names it")
    for name in os.listdir(os.path.join(store, "packs")):
        if name not in ends:
            fail(store, f"packs/{name}: no row names it")
        if os.path.getsize(os.path.join(store, "packs", name)) > ends[name]:
            fail(store, f"packs/{name}: longer than its {ends[name]} committed bytes")
    if os.listdir(os.path.join(store, "spool")):
        fail(store, "spool/ is not empty")


def _check(store, left_over):
    if not os.path.exists(os.path.join(store, "catalog.db")):
        return
    directory = tempfile.mkdtemp(prefix="recask-catalog-")
    try:
        db = _open_copy(store, directory)
        if db.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'totals'").fetchone()[0] == 0:
            return  # it died before it had tables
        _check_catalog(store, db)
        _check_originals(store, db)
        _check_frames(store, db)
        _check_manifests(store, db)
        if left_over:
            _check_left_over(store, db)
        db.close()
    finally:
        shutil.rmtree(directory)


def bytes_behind_rows(store):
    _check(store, False)


def whole_store(store):
    """Of a store that nobody has open; and recask says so itself."""
    _check(store, True)
    said = subprocess.run([os.environ["RECASK_BIN"], "fsck", "--read", "--store", store], capture_output=True, text=True, check=False)
    if said.returncode != 0:
        fail(store, f"fsck: {said.stdout}{said.stderr}")


def patient_blob(r, repo, digest):
    """As clients do who are told to come again: a small store has no room at times for all that is pulled at once."""
    end = time.monotonic() + 30
    while True:
        answer = r.blob(repo, digest)
        if answer.status != 503 or time.monotonic() > end:
            return answer
        time.sleep(0.1)


class Given:
    """What clients got whole: it has to be there afterwards too."""

    def __init__(self):
        self.manifests = {}  # (repo, digest) -> digest of the body
        self.blobs = set()

    def pull(self, r, repo, reference, agent):
        answer = r.manifest(repo, reference, agent)
        equal(answer.status, 200, f"{repo}:{reference}")
        if not answer.complete:
            raise EOFError
        digest = answer.h("Docker-Content-Digest")
        equal(sha256(answer.body), digest)
        self.manifests[repo, digest] = agent
        value = json.loads(answer.body)
        for part in [value["config"], *value["layers"]]:
            blob = patient_blob(r, repo, part["digest"])
            equal(blob.status, 200, f"{repo} {part['digest']} for {agent}: {blob.body[:200]}")
            if not blob.complete:
                raise EOFError
            equal((sha256(blob.body), len(blob.body)), (part["digest"], part["size"]), f"{repo} for {agent}")
            self.blobs.add((repo, part["digest"]))

    def check(self, r, pick=None, most=None):
        """All of it, or so many of each, picked at random."""
        manifests, blobs = list(self.manifests.items()), list(self.blobs)
        if pick is not None:
            manifests, blobs = (pick.sample(sorted(xs), min(most, len(xs))) for xs in (manifests, blobs))
        for (repo, digest), agent in manifests:
            answer = r.manifest(repo, digest, agent)
            equal((answer.status, sha256(answer.body)), (200, digest), f"manifest {repo}@{digest}")
        for repo, digest in blobs:
            answer = patient_blob(r, repo, digest)
            equal((answer.status, answer.complete, sha256(answer.body)), (200, True, digest),
                  f"blob {repo} {digest} ({answer.body[:200] if answer.status != 200 else ''})")
