// libnccl.so.2 as far as the transport uses it: ranks are threads of one process, and data moves when all of those that
// take part have issued their calls.

#include <nccl.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <shardrun/sdk/reduce.hpp>
#include <string>
#include <vector>

#include "tests/unit/transports_nccl/fakes/fake.h"

namespace {

enum class Kind { send, recv, broadcast, reduce, all_reduce, all_gather, reduce_scatter };

struct Call {
  Kind kind{};
  const void* send = nullptr;
  void* recv = nullptr;
  std::size_t count = 0;
  ncclDataType_t dtype{};
  ncclRedOp_t reduction{};
  int peer = 0;
  ncclComm_t comm = nullptr;
  CUstream stream = nullptr;
  FakeWork done;
};

struct World {
  int size = 0;
  int joined = 0;
  std::map<int, std::deque<Call>> collectives;                   // by rank
  std::map<std::pair<int, int>, std::deque<Call>> sends, recvs;  // by sender and receiver
};

}  // namespace

struct ncclComm {
  World* world = nullptr;
  int rank = 0;
  int polls = 0;
  bool is_aborted = false;
  std::vector<std::pair<CUstream, FakeWork>> handing;
};

namespace {

std::mutex mutex;
std::map<std::string, World> worlds;
std::vector<std::unique_ptr<ncclComm>> comms;  // also those that are gone, so that whoever still uses one is caught
int ids = 0;
int polls = 0;
int failed_rank = -1;
int misuses = 0;
int open_comms = 0;
std::string lines;
thread_local std::vector<Call> grouped;
thread_local int depth = 0;

std::uint32_t dtype_of(ncclDataType_t dtype) {
  switch (dtype) {
    case ncclFloat32: return SR_DTYPE_F32;
    case ncclFloat64: return SR_DTYPE_F64;
    case ncclFloat16: return SR_DTYPE_F16;
    case ncclBfloat16: return SR_DTYPE_BF16;
    case ncclInt8: return SR_DTYPE_I8;
    case ncclInt32: return SR_DTYPE_I32;
    case ncclUint32: return SR_DTYPE_U32;
    case ncclInt64: return SR_DTYPE_I64;
    case ncclUint64: return SR_DTYPE_U64;
    default: return SR_DTYPE_U8;
  }
}

std::size_t size_of(ncclDataType_t dtype) {
  switch (dtype_of(dtype)) {
    case SR_DTYPE_F64:
    case SR_DTYPE_I64:
    case SR_DTYPE_U64: return 8;
    case SR_DTYPE_F32:
    case SR_DTYPE_I32:
    case SR_DTYPE_U32: return 4;
    case SR_DTYPE_F16:
    case SR_DTYPE_BF16: return 2;
    default: return 1;
  }
}

std::uint32_t reduction_of(ncclRedOp_t reduction) {
  switch (reduction) {
    case ncclProd: return SR_REDUCE_PRODUCT;
    case ncclMin: return SR_REDUCE_MIN;
    case ncclMax: return SR_REDUCE_MAX;
    default: return SR_REDUCE_SUM;
  }
}

std::string text_of(const Call& call) {
  const std::string count = " " + std::to_string(call.count);
  const std::string peer = std::to_string(call.peer);
  switch (call.kind) {
    case Kind::send: return "send" + count + " to " + peer;
    case Kind::recv: return "recv" + count + " from " + peer;
    case Kind::broadcast: return "broadcast" + count + " of " + peer;
    case Kind::reduce: return "reduce" + count + " at " + peer;
    case Kind::all_reduce: return "all_reduce" + count;
    case Kind::all_gather: return "all_gather" + count;
    case Kind::reduce_scatter: return "reduce_scatter" + count;
  }
  return "?";
}

/// One collective, whose calls all members have issued. Results are made aside first, for buffers in place.
void carry_out(std::vector<Call>& calls) {
  const Call& first = calls[0];
  const auto n = calls.size();
  const std::size_t bytes = first.count * size_of(first.dtype);
  const auto at = [&](const void* base, std::size_t block) { return static_cast<const char*>(base) + block * bytes; };
  const auto reduced = [&](std::size_t block) {
    std::vector<char> sum(at(calls[0].send, block), at(calls[0].send, block) + bytes);
    for (std::size_t i = 1; i < n; ++i) {
      shardrun::sdk::reduce(dtype_of(first.dtype), reduction_of(first.reduction), sum.data(), at(calls[i].send, block),
                            first.count);
    }
    return sum;
  };
  std::vector<std::vector<char>> results(n);
  for (std::size_t i = 0; i < n; ++i) {
    switch (first.kind) {
      case Kind::broadcast: {
        const void* const from = calls[static_cast<std::size_t>(first.peer)].send;
        results[i].assign(at(from, 0), at(from, 1));
        break;
      }
      case Kind::reduce: results[i] = static_cast<int>(i) == first.peer ? reduced(0) : std::vector<char>(); break;
      case Kind::all_reduce: results[i] = reduced(0); break;
      case Kind::reduce_scatter: results[i] = reduced(i); break;
      default:
        for (const Call& call : calls) {
          results[i].insert(results[i].end(), at(call.send, 0), at(call.send, 1));
        }
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    if (!results[i].empty()) {
      std::memcpy(calls[i].recv, results[i].data(), results[i].size());
    }
    *calls[i].done = true;
  }
}

void progress(World& world) {
  const auto all_have_one = [&] {
    for (int rank = 0; rank < world.size; ++rank) {
      if (world.collectives[rank].empty()) {
        return false;
      }
    }
    return true;
  };
  while (all_have_one()) {
    std::vector<Call> calls;
    for (int rank = 0; rank < world.size; ++rank) {
      calls.push_back(world.collectives[rank].front());
      world.collectives[rank].pop_front();
    }
    carry_out(calls);
  }
  for (auto& [link, sends] : world.sends) {
    auto& recvs = world.recvs[link];
    while (!sends.empty() && !recvs.empty()) {
      std::memcpy(recvs.front().recv, sends.front().send, sends.front().count * size_of(sends.front().dtype));
      misuses += sends.front().count == recvs.front().count ? 0 : 1;
      *sends.front().done = true;
      *recvs.front().done = true;
      sends.pop_front();
      recvs.pop_front();
    }
  }
}

ncclResult_t submit() {
  const std::lock_guard lock(mutex);
  if (grouped.empty()) {
    return ncclSuccess;
  }
  ncclComm& comm = *grouped[0].comm;
  if (comm.is_aborted || comm.polls > 0 || !fake_has_context()) {
    ++misuses;
    grouped.clear();
    return ncclInvalidUsage;
  }
  lines += "rank " + std::to_string(comm.rank) + ":";
  World& world = *comm.world;
  for (Call& call : grouped) {
    lines += (&call == grouped.data() ? " " : ", ") + text_of(call);
    call.done = std::make_shared<std::atomic<bool>>(false);
    comm.handing.emplace_back(call.stream, call.done);
    if (call.kind == Kind::send) {
      world.sends[{comm.rank, call.peer}].push_back(call);
    } else if (call.kind == Kind::recv) {
      world.recvs[{call.peer, comm.rank}].push_back(call);
    } else {
      world.collectives[comm.rank].push_back(call);
    }
  }
  lines += "\n";
  grouped.clear();
  comm.polls = polls;
  if (comm.polls == 0) {
    for (const auto& [stream, work] : comm.handing) {
      fake_stream_add(stream, work);
    }
    comm.handing.clear();
  }
  progress(world);
  return comm.polls > 0 ? ncclInProgress : ncclSuccess;
}

ncclResult_t add(Call call) {
  grouped.push_back(std::move(call));
  return depth > 0 ? ncclSuccess : submit();
}

/// What the device does for it ends.
void drop(ncclComm& comm) {
  const auto drop_of = [&](std::deque<Call>& calls) {
    for (Call& call : calls) {
      if (call.comm == &comm) {
        *call.done = true;
      }
    }
    std::erase_if(calls, [&](const Call& call) { return call.comm == &comm; });
  };
  for (auto& [rank, calls] : comm.world->collectives) {
    drop_of(calls);
  }
  for (auto* links : {&comm.world->sends, &comm.world->recvs}) {
    for (auto& [link, calls] : *links) {
      drop_of(calls);
    }
  }
}

std::string last_log;

}  // namespace

extern "C" {

const char* fake_nccl_log() {
  const std::lock_guard lock(mutex);
  last_log = std::move(lines);
  lines.clear();
  return last_log.c_str();
}
void fake_nccl_set_polls(int count) {
  const std::lock_guard lock(mutex);
  polls = count;
}
void fake_nccl_fail(int rank) {
  const std::lock_guard lock(mutex);
  failed_rank = rank;
}
int fake_nccl_misuses() {
  const std::lock_guard lock(mutex);
  return misuses;
}
int fake_nccl_open() {
  const std::lock_guard lock(mutex);
  return open_comms;
}

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::lock_guard lock(mutex);
  *id = {};
  std::strncpy(id->internal, std::to_string(++ids).c_str(), sizeof(id->internal) - 1);
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  const std::lock_guard lock(mutex);
  misuses += config->blocking != 0 || !fake_has_context() ? 1 : 0;
  World& world = worlds[id.internal];
  world.size = size;
  ++world.joined;
  ++open_comms;
  *comm = comms.emplace_back(std::make_unique<ncclComm>(ncclComm{&world, rank, polls, false, {}})).get();
  return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  const std::lock_guard lock(mutex);
  misuses += comm->is_aborted ? 1 : 0;
  *state = ncclSuccess;
  if (comm->rank == failed_rank) {
    *state = ncclRemoteError;
  } else if (comm->world->joined < comm->world->size || (comm->polls > 0 && --comm->polls > 0)) {
    *state = ncclInProgress;
  } else {
    for (const auto& [stream, work] : comm->handing) {
      fake_stream_add(stream, work);
    }
    comm->handing.clear();
  }
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const std::lock_guard lock(mutex);
  misuses += comm->is_aborted ? 1 : 0;
  return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const std::lock_guard lock(mutex);
  misuses += comm->is_aborted ? 1 : 0;
  comm->is_aborted = true;
  --open_comms;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const std::lock_guard lock(mutex);
  misuses += comm->is_aborted ? 1 : 0;
  drop(*comm);
  comm->is_aborted = true;
  --open_comms;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited or there was a network error" : "an error of NCCL";
}
const char* ncclGetLastError(ncclComm_t) { return "the last words of NCCL"; }
ncclResult_t ncclGroupStart() {
  ++depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() { return --depth > 0 ? ncclSuccess : submit(); }
ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return add({Kind::send, from, nullptr, count, dtype, ncclSum, peer, comm, stream, {}});
}
ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm, cudaStream_t stream) {
  return add({Kind::recv, nullptr, to, count, dtype, ncclSum, peer, comm, stream, {}});
}
ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t dtype, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  return add({Kind::broadcast, from, to, count, dtype, ncclSum, root, comm, stream, {}});
}
ncclResult_t ncclReduce(const void* from, void* to, size_t count, ncclDataType_t dtype, ncclRedOp_t reduction, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  return add({Kind::reduce, from, to, count, dtype, reduction, root, comm, stream, {}});
}
ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t dtype, ncclRedOp_t reduction,
                           ncclComm_t comm, cudaStream_t stream) {
  return add({Kind::all_reduce, from, to, count, dtype, reduction, 0, comm, stream, {}});
}
ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t dtype, ncclComm_t comm,
                           cudaStream_t stream) {
  return add({Kind::all_gather, from, to, count, dtype, ncclSum, 0, comm, stream, {}});
}
ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t dtype, ncclRedOp_t reduction,
                               ncclComm_t comm, cudaStream_t stream) {
  return add({Kind::reduce_scatter, from, to, count, dtype, reduction, 0, comm, stream, {}});
}

}  // extern "C"
