"""Records to bytes and back. This room knows nothing of files, indexes or lineage."""
