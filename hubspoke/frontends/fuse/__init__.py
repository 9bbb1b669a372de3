"""The mount: a FUSE server on the raw /dev/fuse, read-only, over the spoke's reader."""
