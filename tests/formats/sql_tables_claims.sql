CREATE TABLE holdfast_table (
    "table" TEXT NOT NULL,
    share TEXT NOT NULL,
    job TEXT NOT NULL,
    sink TEXT NOT NULL,
    PRIMARY KEY ("table", share)
);
