// An empty library. The real cuDNN has files of these names, which must exist, but nothing calls them.
