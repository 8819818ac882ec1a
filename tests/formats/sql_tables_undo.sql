CREATE TABLE holdfast_undo (
    job TEXT NOT NULL,
    sink TEXT NOT NULL,
    writer INTEGER NOT NULL,
    timeline BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    n BIGINT NOT NULL,
    "key" TEXT NOT NULL,
    "before" TEXT,
    "table" TEXT,
    PRIMARY KEY (job, sink, writer, timeline, epoch, n)
);
