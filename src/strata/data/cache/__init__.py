"""Files of datasets on this host: remote files, cache, indexes, decompression."""
