// A transport: how bytes get from one rank to another. This one is a link of two functions; the SDK makes all
// collectives, background threads and deadlines of it. One with collectives of its own is described in docs/plugins.md.

#include "unix_link.h"

SHARDRUN_EXPORT_TWO_FUNCTION_TRANSPORT(mine::UnixLink, "mine", "1.0")
