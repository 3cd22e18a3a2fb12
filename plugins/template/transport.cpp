// A transport: it moves bytes from one rank to another. This one is a link of two functions, from which the SDK makes
// all collectives, background threads and deadlines. docs/plugins.md describes one with collectives of its own.

#include "unix_link.h"

SHARDRUN_EXPORT_TWO_FUNCTION_TRANSPORT(mine::UnixLink, "mine", "1.0")
