#include "tcp_link.h"

SHARDRUN_EXPORT_TWO_FUNCTION_TRANSPORT(my_plugins::TcpLink, "tcp", "1.0")
