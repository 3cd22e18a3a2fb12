#include "transports/nccl/transport.h"

SHARDRUN_EXPORT_TRANSPORT(shardrun::nccl_transport::NcclTransport, "nccl", "1.0", "rccl cuda gpu nvlink")
