#include "tcp_link.h"

SHARDRUN_EXPORT_TWO_FUNCTION_TRANSPORT(my_plugins::TcpLink, "plain_tcp", "1.0")
