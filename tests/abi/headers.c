#include <shardrun/strategy.h>
#include <shardrun/transport.h>
#if SR_ABI_MINOR >= 7
#include <shardrun/engine.h>
#include <shardrun/model.h>
#endif

#include "offsets.h"

#if SR_ABI_MINOR >= 5
SR_ASSERT(sr_error_awaited_moved, offsetof(sr_error, awaited) == 512);
#endif

const sr_manifest shardrun_manifest_v1 = {sizeof(sr_manifest), SR_MAGIC,         SR_ABI_MAJOR, SR_ABI_MINOR,
                                          0,                   SR_KIND_STRATEGY, "headers",    "1.0"};

int32_t shardrun_open_v1(const sr_host* host, sr_error* error, sr_plugin** plugin) {
  (void)error;
  (void)plugin;
  return SR_HAS(host, sr_host, log) ? SR_INVALID : SR_INTERNAL;
}
