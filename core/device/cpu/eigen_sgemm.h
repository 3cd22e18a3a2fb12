#pragma once

#include "core/device/cpu/sgemm.h"

namespace shardrun::device::cpu {

using Sgemm = decltype(sgemm);

}  // namespace shardrun::device::cpu
