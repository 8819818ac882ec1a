CREATE TABLE holdfast_owner (
    job TEXT NOT NULL,
    sink TEXT NOT NULL,
    owner TEXT NOT NULL,
    generation BIGINT NOT NULL,
    PRIMARY KEY (job, sink)
);
