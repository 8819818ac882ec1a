CREATE TABLE holdfast_fence (
    job TEXT NOT NULL,
    sink TEXT NOT NULL,
    source TEXT NOT NULL,
    "partition" BIGINT NOT NULL,
    generation BIGINT NOT NULL,
    timeline BIGINT NOT NULL,
    "offset" BIGINT NOT NULL,
    path TEXT NOT NULL,
    PRIMARY KEY (job, sink, source, "partition")
);

CREATE TABLE holdfast_horizon (
    job TEXT NOT NULL,
    sink TEXT NOT NULL,
    writer INTEGER NOT NULL,
    timeline BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    PRIMARY KEY (job, sink, writer)
);

CREATE TABLE holdfast_progress (
    job TEXT NOT NULL,
    sink TEXT NOT NULL,
    writer INTEGER NOT NULL,
    timeline BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    PRIMARY KEY (job, sink, writer)
);

CREATE TABLE holdfast_tombstone (
    "table" TEXT NOT NULL,
    "key" TEXT NOT NULL,
    tag TEXT NOT NULL,
    sink TEXT NOT NULL,
    writer INTEGER NOT NULL,
    PRIMARY KEY ("table", "key")
);

CREATE TABLE holdfast_undo (
    job TEXT NOT NULL,
    sink TEXT NOT NULL,
    writer INTEGER NOT NULL,
    timeline BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    n BIGINT NOT NULL,
    "key" TEXT NOT NULL,
    "before" TEXT,
    PRIMARY KEY (job, sink, writer, timeline, epoch, n)
);

CREATE TABLE "hot" ("auction" INTEGER NOT NULL, "window_end" TEXT NOT NULL, "top" REAL, "raw" BLOB, "_holdfast_tag" TEXT, PRIMARY KEY ("auction", "window_end"));
