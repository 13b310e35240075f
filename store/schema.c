/* SPDX-License-Identifier: Apache-2.0
 * store/schema.c - the catalog's tables (FORMAT.md "Catalog"), and how older ones become this version.
 *
 * Integer ids inside, digests as 32-byte blobs at the edge. A column that is searched has an index; a WITHOUT ROWID
 * table is its own. Foreign keys only where the parent is never deleted or the child is indexed by it: otherwise each
 * delete of a parent would scan the child.
 */
#include "store/catalog_internal.h"

#define APPLICATION_ID 0x52435331 /* "RCS1" */
#define SCHEMA_VERSION 2

/* sha256 of no bytes: the only blob whose size may be 0 (case 12). */
#define EMPTY_DIGEST "x'e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855'"

static const char schema_blobs[] =
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;"

    "CREATE TABLE repo ("
    "  id INTEGER PRIMARY KEY,"
    "  upstream TEXT NOT NULL,"
    "  name TEXT NOT NULL,"
    "  UNIQUE (upstream, name)"
    ") STRICT;"

    "CREATE TABLE canonical ("
    "  id INTEGER PRIMARY KEY,"
    "  digest BLOB NOT NULL UNIQUE CHECK (length(digest) = 32)," /* the diffID */
    "  size INTEGER NOT NULL CHECK (size >= 0),"
    "  zdigest BLOB UNIQUE CHECK (length(zdigest) = 32)," /* of the zstd form */
    "  zsize INTEGER,"
    "  level INTEGER NOT NULL DEFAULT 0," /* asked for when the layer was written; frames have their own */
    "  encoder INTEGER NOT NULL DEFAULT 0,"
    "  present INTEGER NOT NULL DEFAULT 0 CHECK (present IN (0, 1)),"
    "  chunks INTEGER NOT NULL DEFAULT 0,"
    "  created INTEGER NOT NULL DEFAULT 0,"
    "  last_read INTEGER NOT NULL DEFAULT 0" /* milliseconds since 1970; by a client */
    ") STRICT;"

    "CREATE TABLE blob ("
    "  id INTEGER PRIMARY KEY,"
    "  digest BLOB NOT NULL UNIQUE CHECK (length(digest) = 32),"
    "  size INTEGER CHECK (size > 0 OR (size = 0 AND digest = " EMPTY_DIGEST "))," /* NULL: not known */
    "  verified INTEGER NOT NULL DEFAULT 0 CHECK (verified IN (0, 1))," /* size is of bytes once hashed here */
    "  original_present INTEGER NOT NULL DEFAULT 0 CHECK (original_present IN (0, 1)),"
    "  canon INTEGER NOT NULL DEFAULT 0 CHECK (canon IN (0, 1, 2))," /* enum store_canon */
    "  canonical_id INTEGER REFERENCES canonical (id),"
    "  refuse_reason TEXT,"
    "  replay BLOB," /* how to make these bytes from the canonical layer; not written yet */
    "  created INTEGER NOT NULL DEFAULT 0,"
    "  last_read INTEGER NOT NULL DEFAULT 0,"
    "  CHECK ((canon = 1) = (canonical_id IS NOT NULL)),"
    "  CHECK (original_present = 0 OR size IS NOT NULL)"
    ") STRICT;"
    "CREATE INDEX blob_canonical ON blob (canonical_id) WHERE canonical_id IS NOT NULL;"
    "CREATE INDEX blob_pending ON blob (id) WHERE original_present = 1 AND canon = 0;"

    /* Beside `blob`, so that a look-up does not drag the sums along. A row is there while the file is. */
    "CREATE TABLE original ("
    "  blob_id INTEGER PRIMARY KEY REFERENCES blob (id),"
    "  sums BLOB NOT NULL" /* XXH3-64 of each MiB, little-endian */
    ") STRICT;"

    "CREATE TABLE repo_blob ("
    "  repo_id INTEGER NOT NULL REFERENCES repo (id),"
    "  blob_id INTEGER NOT NULL REFERENCES blob (id),"
    "  PRIMARY KEY (repo_id, blob_id)"
    ") STRICT, WITHOUT ROWID;"
    "CREATE INDEX repo_blob_blob ON repo_blob (blob_id, repo_id);";

static const char schema_chunks[] =
    "CREATE TABLE pack ("
    "  id INTEGER PRIMARY KEY,"
    "  end INTEGER NOT NULL,"            /* bytes behind it are a crash's tail */
    "  state INTEGER NOT NULL DEFAULT 0" /* 0 in use; others are reserved for compaction */
    ") STRICT;"

    "CREATE TABLE chunk ("
    "  id INTEGER PRIMARY KEY,"
    "  digest BLOB NOT NULL UNIQUE CHECK (length(digest) = 32),"
    "  raw INTEGER NOT NULL CHECK (raw >= 0)," /* uncompressed bytes; 0: the one chunk of an empty layer */
    "  kind INTEGER NOT NULL,"                 /* enum frame_kind */
    "  level INTEGER NOT NULL,"
    "  encoder INTEGER NOT NULL,"
    "  pack_id INTEGER REFERENCES pack (id)," /* NULL: lost */
    "  off INTEGER NOT NULL,"                 /* of the frame in the pack */
    "  len INTEGER NOT NULL,"
    "  sum INTEGER NOT NULL,"           /* XXH3-64 of the frame, as a signed number of the same bits */
    "  refs INTEGER NOT NULL DEFAULT 0" /* recipe rows that name it */
    ") STRICT;"
    "CREATE INDEX chunk_pack ON chunk (pack_id, off);"
    "CREATE INDEX chunk_unused ON chunk (id) WHERE refs = 0;"

    /* Ranges of deleted chunks whose blocks are still to be given back: written with the deletion, so that a crash
     * between the two loses no room. */
    "CREATE TABLE hole ("
    "  id INTEGER PRIMARY KEY,"
    "  pack_id INTEGER NOT NULL,"
    "  off INTEGER NOT NULL,"
    "  len INTEGER NOT NULL"
    ") STRICT;"

    /* chunk_id has no REFERENCES: it would ask for an index by chunk, a third of the catalog, to allow deleting one.
     * chunk.refs says the same. */
    "CREATE TABLE recipe ("
    "  canonical_id INTEGER NOT NULL REFERENCES canonical (id),"
    "  off INTEGER NOT NULL,"  /* in the canonical layer */
    "  zoff INTEGER NOT NULL," /* in the zstd form */
    "  chunk_id INTEGER NOT NULL,"
    "  PRIMARY KEY (canonical_id, off)"
    ") STRICT, WITHOUT ROWID;"
    /* A Range of the zstd form searches by zoff. */
    "CREATE INDEX recipe_zoff ON recipe (canonical_id, zoff);";

static const char schema_manifests[] =
    "CREATE TABLE manifest ("
    "  id INTEGER PRIMARY KEY,"
    "  digest BLOB NOT NULL UNIQUE CHECK (length(digest) = 32),"
    "  media_type TEXT NOT NULL,"
    "  view INTEGER NOT NULL," /* enum oci_view; 0: the upstream's own bytes */
    "  upstream BLOB NOT NULL CHECK (length(upstream) = 32),"
    "  is_index INTEGER NOT NULL,"
    "  views INTEGER NOT NULL DEFAULT 0," /* enum store_views */
    "  reason TEXT,"
    "  signed INTEGER," /* NULL: not looked up */
    "  wanted INTEGER NOT NULL DEFAULT 0,"
    "  created INTEGER NOT NULL DEFAULT 0,"
    "  body BLOB NOT NULL CHECK (length(body) > 0)" /* last: the rest is read without it */
    ") STRICT;"
    "CREATE INDEX manifest_wanted ON manifest (id) WHERE wanted = 1 AND views = 0 AND is_index = 0;"

    "CREATE TABLE manifest_ref ("
    "  manifest_id INTEGER NOT NULL REFERENCES manifest (id),"
    "  pos INTEGER NOT NULL,"
    "  role INTEGER NOT NULL," /* enum store_ref_role */
    "  digest BLOB NOT NULL CHECK (length(digest) = 32),"
    "  size INTEGER NOT NULL,"
    "  PRIMARY KEY (manifest_id, pos)"
    ") STRICT, WITHOUT ROWID;"
    "CREATE INDEX manifest_ref_digest ON manifest_ref (digest, role);"

    "CREATE TABLE repo_manifest ("
    "  repo_id INTEGER NOT NULL REFERENCES repo (id),"
    "  manifest_id INTEGER NOT NULL REFERENCES manifest (id),"
    "  PRIMARY KEY (repo_id, manifest_id)"
    ") STRICT, WITHOUT ROWID;"
    "CREATE INDEX repo_manifest_manifest ON repo_manifest (manifest_id, repo_id);"

    "CREATE TABLE tag ("
    "  repo_id INTEGER NOT NULL REFERENCES repo (id),"
    "  name TEXT NOT NULL,"
    "  manifest_id INTEGER NOT NULL REFERENCES manifest (id),"
    "  checked_at INTEGER NOT NULL,"
    "  created INTEGER NOT NULL,"
    "  PRIMARY KEY (repo_id, name)"
    ") STRICT, WITHOUT ROWID;"
    "CREATE INDEX tag_manifest ON tag (manifest_id);"

    "CREATE TABLE view ("
    "  upstream_id INTEGER NOT NULL REFERENCES manifest (id),"
    "  view INTEGER NOT NULL,"
    "  manifest_id INTEGER NOT NULL REFERENCES manifest (id),"
    "  PRIMARY KEY (upstream_id, view)"
    ") STRICT, WITHOUT ROWID;"
    "CREATE INDEX view_manifest ON view (manifest_id);"

    /* All that was ever published: two upstream manifests (the same layers, compressed twice) can have one canonical
     * manifest in common, and a replaced view stays servable. */
    "CREATE TABLE derived ("
    "  manifest_id INTEGER NOT NULL REFERENCES manifest (id),"
    "  upstream_id INTEGER NOT NULL REFERENCES manifest (id),"
    "  view INTEGER NOT NULL,"
    "  PRIMARY KEY (manifest_id, upstream_id, view)"
    ") STRICT, WITHOUT ROWID;"
    "CREATE INDEX derived_upstream ON derived (upstream_id);";

/* Numbers for store_stats(): one row, kept by triggers, so that they are exact after a crash and cost no scan. They
 * see INSERT, UPDATE OF and DELETE; REPLACE would slip past them (C4). */
static const char schema_totals[] =
    "CREATE TABLE totals ("
    "  id INTEGER PRIMARY KEY CHECK (id = 1),"
    "  chunks INTEGER NOT NULL DEFAULT 0,"
    "  chunk_bytes INTEGER NOT NULL DEFAULT 0,"
    "  frame_bytes INTEGER NOT NULL DEFAULT 0,"
    "  canonical_layers INTEGER NOT NULL DEFAULT 0,"
    "  canonical_bytes INTEGER NOT NULL DEFAULT 0,"
    "  original_bytes INTEGER NOT NULL DEFAULT 0,"
    "  replayable INTEGER NOT NULL DEFAULT 0,"
    "  blobs INTEGER NOT NULL DEFAULT 0,"
    "  manifests INTEGER NOT NULL DEFAULT 0,"
    "  tags INTEGER NOT NULL DEFAULT 0"
    ") STRICT;"
    "INSERT INTO totals (id) VALUES (1);"

    "CREATE TRIGGER chunk_added AFTER INSERT ON chunk WHEN NEW.pack_id IS NOT NULL BEGIN"
    "  UPDATE totals SET chunks = chunks + 1, chunk_bytes = chunk_bytes + NEW.raw, frame_bytes = frame_bytes + NEW.len;"
    "END;"
    "CREATE TRIGGER chunk_gone AFTER DELETE ON chunk WHEN OLD.pack_id IS NOT NULL BEGIN"
    "  UPDATE totals SET chunks = chunks - 1, chunk_bytes = chunk_bytes - OLD.raw, frame_bytes = frame_bytes - OLD.len;"
    "END;"
    "CREATE TRIGGER chunk_moved AFTER UPDATE OF pack_id, len ON chunk BEGIN"
    "  UPDATE totals SET"
    "    chunks = chunks + (NEW.pack_id IS NOT NULL) - (OLD.pack_id IS NOT NULL),"
    "    chunk_bytes = chunk_bytes + ((NEW.pack_id IS NOT NULL) - (OLD.pack_id IS NOT NULL)) * NEW.raw,"
    "    frame_bytes = frame_bytes + (NEW.pack_id IS NOT NULL) * NEW.len - (OLD.pack_id IS NOT NULL) * OLD.len;"
    "END;"

    "CREATE TRIGGER canonical_added AFTER INSERT ON canonical WHEN NEW.present BEGIN"
    "  UPDATE totals SET canonical_layers = canonical_layers + 1, canonical_bytes = canonical_bytes + NEW.size;"
    "END;"
    "CREATE TRIGGER canonical_changed AFTER UPDATE OF present ON canonical BEGIN"
    "  UPDATE totals SET canonical_layers = canonical_layers + NEW.present - OLD.present,"
    "    canonical_bytes = canonical_bytes + (NEW.present - OLD.present) * NEW.size;"
    "END;"

    "CREATE TRIGGER blob_added AFTER INSERT ON blob BEGIN"
    "  UPDATE totals SET blobs = blobs + 1, replayable = replayable + (NEW.replay IS NOT NULL),"
    "    original_bytes = original_bytes + NEW.original_present * coalesce(NEW.size, 0);"
    "END;"
    "CREATE TRIGGER blob_changed AFTER UPDATE OF original_present, replay ON blob BEGIN"
    "  UPDATE totals SET replayable = replayable + (NEW.replay IS NOT NULL) - (OLD.replay IS NOT NULL),"
    "    original_bytes = original_bytes + NEW.original_present * coalesce(NEW.size, 0)"
    "      - OLD.original_present * coalesce(OLD.size, 0);"
    "END;"

    "CREATE TRIGGER manifest_added AFTER INSERT ON manifest BEGIN"
    "  UPDATE totals SET manifests = manifests + 1;"
    "END;"
    "CREATE TRIGGER tag_added AFTER INSERT ON tag BEGIN UPDATE totals SET tags = tags + 1; END;"
    "CREATE TRIGGER tag_gone AFTER DELETE ON tag BEGIN UPDATE totals SET tags = tags - 1; END;";

/* Pins (pin.c). Version 2 added them. `pinned` has every digest that some pin leads to, known or not yet; the columns of
 * the same name say it of the rows that eviction looks at. All of it is kept by triggers, whoever writes what in which order:
 * an edge (pin_edge) that comes, goes or changes makes its end be looked at again (an insert into pin_refresh), and an end
 * that has changed does so with the edges that leave it. Digests make no circles, so this ends. */
static const char schema_pins[] =
    "ALTER TABLE blob ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0;" /* 1: its canonical layer will do; 2: these bytes */
    "ALTER TABLE canonical ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE totals ADD COLUMN pins INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE totals ADD COLUMN pinned_bytes INTEGER NOT NULL DEFAULT 0;"

    "CREATE TABLE pin ("
    "  repo_id INTEGER NOT NULL REFERENCES repo (id),"
    "  reference TEXT NOT NULL," /* a tag, or a digest as text */
    "  by_digest INTEGER NOT NULL CHECK (by_digest IN (0, 1)),"
    "  digest BLOB NOT NULL CHECK (length(digest) = 32)," /* of the upstream manifest that it stands for now */
    "  created INTEGER NOT NULL,"
    "  PRIMARY KEY (repo_id, reference)"
    ") STRICT, WITHOUT ROWID;"
    "CREATE INDEX pin_digest ON pin (digest);"

    "CREATE TABLE pinned ("
    "  digest BLOB PRIMARY KEY CHECK (length(digest) = 32),"
    "  exact INTEGER NOT NULL" /* 1: a canonical layer does not do instead */
    ") STRICT, WITHOUT ROWID;"

    /* Images whose views are not made (yet, or ever) are pulled as the upstream has them, and so is what is asked for by
     * its digest. */
    "CREATE VIEW pin_edge (digest, exact) AS"
    "  SELECT digest, by_digest FROM pin"
    "  UNION ALL SELECT r.digest, p.exact = 1 OR (r.role <> 3 AND m.views <> 1) FROM manifest_ref r"
    "    CROSS JOIN manifest m ON m.id = r.manifest_id CROSS JOIN pinned p ON p.digest = m.digest;"
    "CREATE VIEW pin_refresh (digest) AS SELECT digest FROM pinned;"
    "CREATE TRIGGER pin_refreshed INSTEAD OF INSERT ON pin_refresh BEGIN"
    "  DELETE FROM pinned WHERE digest = NEW.digest AND NOT EXISTS (SELECT 1 FROM pin_edge WHERE digest = NEW.digest);"
    "  INSERT INTO pinned (digest, exact) SELECT NEW.digest, max(exact) FROM pin_edge WHERE digest = NEW.digest"
    "    HAVING count(*) > 0"
    "    ON CONFLICT (digest) DO UPDATE SET exact = excluded.exact WHERE exact <> excluded.exact;"
    "END;";

#define CANONICAL_PINNED                                                                                               \
    "UPDATE canonical SET pinned = EXISTS (SELECT 1 FROM pinned WHERE digest = canonical.digest)"                      \
    "  OR EXISTS (SELECT 1 FROM pinned WHERE digest = canonical.zdigest)"                                              \
    "  OR EXISTS (SELECT 1 FROM blob WHERE canonical_id = canonical.id AND pinned > 0)"
#define REFRESH_CHILDREN                                                                                               \
    "INSERT INTO pin_refresh (digest) SELECT r.digest FROM manifest m CROSS JOIN manifest_ref r ON r.manifest_id = m.id"

static const char schema_pin_triggers[] =
    /* the roots */
    "CREATE TRIGGER pin_added AFTER INSERT ON pin BEGIN"
    "  UPDATE totals SET pins = pins + 1;"
    "  INSERT INTO pin_refresh (digest) VALUES (NEW.digest);"
    "END;"
    "CREATE TRIGGER pin_moved AFTER UPDATE OF digest ON pin WHEN OLD.digest <> NEW.digest BEGIN"
    "  INSERT INTO pin_refresh (digest) VALUES (NEW.digest);" /* first: what both have stays as it is */
    "  INSERT INTO pin_refresh (digest) VALUES (OLD.digest);"
    "END;"
    "CREATE TRIGGER pin_gone AFTER DELETE ON pin BEGIN"
    "  UPDATE totals SET pins = pins - 1;"
    "  INSERT INTO pin_refresh (digest) VALUES (OLD.digest);"
    "END;"
    "CREATE TRIGGER pin_tag_added AFTER INSERT ON tag BEGIN"
    "  UPDATE pin SET digest = (SELECT digest FROM manifest WHERE id = NEW.manifest_id)"
    "    WHERE repo_id = NEW.repo_id AND reference = NEW.name;"
    "END;"
    "CREATE TRIGGER pin_tag_moved AFTER UPDATE OF manifest_id ON tag WHEN OLD.manifest_id <> NEW.manifest_id BEGIN"
    "  UPDATE pin SET digest = (SELECT digest FROM manifest WHERE id = NEW.manifest_id)"
    "    WHERE repo_id = NEW.repo_id AND reference = NEW.name;"
    "END;"

    /* the edges of manifests */
    "CREATE TRIGGER pin_ref_added AFTER INSERT ON manifest_ref"
    "  WHEN EXISTS (SELECT 1 FROM manifest m CROSS JOIN pinned p ON p.digest = m.digest WHERE m.id = NEW.manifest_id)"
    " BEGIN"
    "  INSERT INTO pin_refresh (digest) VALUES (NEW.digest);"
    "END;"
    "CREATE TRIGGER pin_views_changed AFTER UPDATE OF views ON manifest"
    "  WHEN (OLD.views = 1) <> (NEW.views = 1) AND EXISTS (SELECT 1 FROM pinned WHERE digest = NEW.digest) BEGIN"
    "  " REFRESH_CHILDREN " WHERE m.id = NEW.id;"
    "END;"

    /* what is reached */
    "CREATE TRIGGER pinned_added AFTER INSERT ON pinned BEGIN"
    "  UPDATE blob SET pinned = 1 + NEW.exact WHERE digest = NEW.digest;"
    "  " CANONICAL_PINNED " WHERE digest = NEW.digest;"
    "  " CANONICAL_PINNED " WHERE zdigest = NEW.digest;"
    "  " REFRESH_CHILDREN " WHERE m.digest = NEW.digest;"
    "END;"
    "CREATE TRIGGER pinned_changed AFTER UPDATE OF exact ON pinned BEGIN"
    "  UPDATE blob SET pinned = 1 + NEW.exact WHERE digest = NEW.digest;"
    "  " REFRESH_CHILDREN " WHERE m.digest = NEW.digest;"
    "END;"
    "CREATE TRIGGER pinned_gone AFTER DELETE ON pinned BEGIN"
    "  UPDATE blob SET pinned = 0 WHERE digest = OLD.digest;"
    "  " CANONICAL_PINNED " WHERE digest = OLD.digest;"
    "  " CANONICAL_PINNED " WHERE zdigest = OLD.digest;"
    "  " REFRESH_CHILDREN " WHERE m.digest = OLD.digest;"
    "END;"

    /* what comes later than its pin */
    "CREATE TRIGGER pin_blob_added AFTER INSERT ON blob"
    "  WHEN EXISTS (SELECT 1 FROM pinned WHERE digest = NEW.digest) BEGIN"
    "  UPDATE blob SET pinned = 1 + (SELECT exact FROM pinned WHERE digest = NEW.digest) WHERE id = NEW.id;"
    "END;"
    "CREATE TRIGGER pin_canonical_added AFTER INSERT ON canonical BEGIN"
    "  " CANONICAL_PINNED " WHERE id = NEW.id;"
    "END;"
    "CREATE TRIGGER pin_canonical_changed AFTER UPDATE OF zdigest ON canonical BEGIN"
    "  " CANONICAL_PINNED " WHERE id = NEW.id;"
    "END;"
    "CREATE TRIGGER pin_blob_changed AFTER UPDATE OF pinned, canonical_id ON blob"
    "  WHEN OLD.pinned <> NEW.pinned OR OLD.canonical_id IS NOT NEW.canonical_id BEGIN"
    "  " CANONICAL_PINNED " WHERE id = NEW.canonical_id;"
    "  " CANONICAL_PINNED " WHERE id = OLD.canonical_id AND OLD.canonical_id IS NOT NEW.canonical_id;"
    "END;"

    /* numbers */
    "CREATE TRIGGER pin_blob_bytes AFTER UPDATE OF pinned, original_present, size ON blob"
    "  WHEN OLD.pinned > 0 OR NEW.pinned > 0 BEGIN"
    "  UPDATE totals SET pinned_bytes = pinned_bytes + (NEW.pinned > 0) * NEW.original_present * coalesce(NEW.size, 0)"
    "    - (OLD.pinned > 0) * OLD.original_present * coalesce(OLD.size, 0);"
    "END;"
    "CREATE TRIGGER pin_canonical_bytes AFTER UPDATE OF pinned, present, zsize ON canonical"
    "  WHEN OLD.pinned OR NEW.pinned BEGIN"
    "  UPDATE totals SET pinned_bytes = pinned_bytes + NEW.pinned * NEW.present * coalesce(NEW.zsize, 0)"
    "    - OLD.pinned * OLD.present * coalesce(OLD.zsize, 0);"
    "END;";

/* What goes first when room is needed (room.c). Version 2 added it. */
static const char schema_room[] =
    "CREATE INDEX canonical_room ON canonical (last_read) WHERE present = 1 AND pinned = 0;"
    "CREATE INDEX blob_spare ON blob (last_read) WHERE original_present = 1 AND canon = 1 AND pinned < 2;"
    "CREATE INDEX blob_room ON blob (last_read) WHERE original_present = 1 AND pinned = 0 AND size >= 65536;"
    "CREATE INDEX blob_small ON blob (last_read) WHERE original_present = 1 AND pinned = 0 AND size < 65536;";

/* last_read was in seconds. */
static const char from_1[] = "UPDATE canonical SET last_read = last_read * 1000;"
                             "UPDATE blob SET last_read = last_read * 1000;";

/* One step from `from` to from + 1. */
static const struct schema_step steps[] = {
    {.from = 1, .sql = {from_1, schema_pins, schema_pin_triggers, schema_room}},
};

static int read_pragma(struct sql_db *db, const char *sql, int64_t *out, struct err *err)
{
    CLEANUP(sql_done) struct sql_query q = SQL_QUERY_INIT;

    TRY(sql_query(db, &q, sql, err));
    TRY(sql_step(&q, err));
    *out = sql_int(&q, 0);
    return 0;
}

static int set_version(struct sql_db *db, int version, struct err *err)
{
    char sql[64];

    (void)snprintf(sql, sizeof(sql), "PRAGMA user_version = %d", version);
    return sql_exec(db, sql, err);
}

static void rollback(struct sql_db *db)
{
    struct err ignored = ERR_INIT;

    (void)!sql_exec(db, "ROLLBACK", &ignored);
}

static int create_in_tx(struct sql_db *db, struct err *err)
{
    char app[64];

    TRY(sql_exec(db, schema_blobs, err));
    TRY(sql_exec(db, schema_chunks, err));
    TRY(sql_exec(db, schema_manifests, err));
    TRY(sql_exec(db, schema_totals, err));
    TRY(sql_exec(db, schema_pins, err));
    TRY(sql_exec(db, schema_pin_triggers, err));
    TRY(sql_exec(db, schema_room, err));
    (void)snprintf(app, sizeof(app), "PRAGMA application_id = %d", APPLICATION_ID);
    TRY(sql_exec(db, app, err));
    TRY(set_version(db, SCHEMA_VERSION, err));
    return sql_exec(db, "COMMIT", err);
}

static int create(struct sql_db *db, struct err *err)
{
    int rc;

    TRY(sql_exec(db, "BEGIN IMMEDIATE", err));
    rc = create_in_tx(db, err);
    if (rc < 0)
        rollback(db);
    return rc;
}

static int step_in_tx(struct sql_db *db, const struct schema_step *step, struct err *err)
{
    for (size_t i = 0; i < ARRAY_LEN(step->sql) && step->sql[i] != NULL; i++)
        TRY(sql_exec(db, step->sql[i], err));
    TRY(set_version(db, step->from + 1, err));
    return sql_exec(db, "COMMIT", err);
}

static const struct schema_step *find_step(const struct schema_step *all, size_t count, int from)
{
    for (size_t i = 0; i < count; i++)
        if (all[i].from == from)
            return &all[i];
    return NULL;
}

int schema_migrate(struct sql_db *db, const char *name, const struct schema_step *all, size_t count, int have, int want,
                   struct err *err)
{
    if (have > want)
        return err_set(err, ERR_UNSUPPORTED,
                       "%s has format %d, but this recask knows formats up to %d: use the newer recask that wrote it",
                       name, have, want);
    for (; have < want; have++) {
        const struct schema_step *step = find_step(all, count, have);
        int rc;

        if (step == NULL)
            return err_set(err, ERR_UNSUPPORTED, "%s has format %d, and no way leads from there to format %d", name,
                           have, want);
        TRY(sql_exec(db, "BEGIN IMMEDIATE", err));
        rc = step_in_tx(db, step, err);
        if (rc < 0) {
            rollback(db);
            return err_wrap(err, "%s: from format %d to %d", name, have, have + 1);
        }
    }
    return 0;
}

/* Cheap: that these are our tables at all. Bytes are checked as they are read, everything by scrub and fsck. */
static int check_tables(struct sql_db *db, const char *name, struct err *err)
{
    int64_t found = 0;

    TRY(read_pragma(db,
                    "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name IN ('repo', 'canonical', 'blob',"
                    " 'original', 'repo_blob', 'pack', 'chunk', 'recipe', 'manifest', 'manifest_ref', 'repo_manifest',"
                    " 'tag', 'view', 'derived', 'totals', 'meta', 'hole', 'pin', 'pinned')",
                    &found, err));
    if (found != 19)
        return err_set(err, ERR_CORRUPT, "%s lacks %d of its 19 tables", name, (int)(19 - found));
    TRY(read_pragma(db, "SELECT count(*) FROM totals WHERE id = 1", &found, err));
    if (found != 1)
        return err_set(err, ERR_CORRUPT, "%s lacks its totals row", name);
    return 0;
}

int schema_check(struct sql_db *db, const char *name, enum schema_age age, struct err *err)
{
    int64_t app = 0;
    int64_t version = 0;

    TRY(read_pragma(db, "PRAGMA application_id", &app, err));
    TRY(read_pragma(db, "PRAGMA user_version", &version, err));
    if (app != APPLICATION_ID || version < 1)
        return err_set(err, ERR_CORRUPT, "%s is empty, or not a recask catalog", name);
    if (version > SCHEMA_VERSION)
        return schema_migrate(db, name, NULL, 0, (int)version, SCHEMA_VERSION, err);
    if (version == SCHEMA_VERSION)
        return check_tables(db, name, err);
    return age == SCHEMA_OR_OLDER
               ? 0
               : err_set(err, ERR_UNSUPPORTED, "%s has format %d: the next start brings it to format %d", name,
                         (int)version, SCHEMA_VERSION);
}

int schema_prepare(struct sql_db *db, const char *name, bool may_create, struct err *err)
{
    int64_t app = 0;
    int64_t version = 0;
    int64_t objects = 0;

    TRY(read_pragma(db, "PRAGMA application_id", &app, err));
    TRY(read_pragma(db, "PRAGMA user_version", &version, err));
    TRY(read_pragma(db, "SELECT count(*) FROM sqlite_schema", &objects, err));
    if (app == 0 && version == 0 && objects == 0) {
        if (may_create)
            return create(db, err);
        return err_set(err, ERR_CORRUPT,
                       "%s is missing or empty, but packs/ beside it is not: put the catalog back, or move the whole"
                       " store away to start anew",
                       name);
    }
    if (app != APPLICATION_ID)
        return err_set(err, ERR_CORRUPT, "%s is an SQLite database, but not a recask catalog", name);
    if (version < 1)
        return err_set(err, ERR_CORRUPT, "%s has the impossible format %lld", name, (long long)version);
    TRY(schema_migrate(db, name, steps, ARRAY_LEN(steps), (int)version, SCHEMA_VERSION, err));
    return check_tables(db, name, err);
}
