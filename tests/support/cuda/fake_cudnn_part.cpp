// A file that must be there, of which nothing is called.
