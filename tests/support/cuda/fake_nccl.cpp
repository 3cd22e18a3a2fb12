#include "tests/support/cuda/fake_nccl.h"

#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/cuda/fake_cuda.h"
#include "tests/support/cuda/fake_nccl_works.h"

namespace fake = shardrun::test::fake_cuda;
using namespace shardrun::test::fake_nccl;

struct ncclComm {
  std::shared_ptr<World> world;
  std::shared_ptr<std::atomic<bool>> is_aborted = std::make_shared<std::atomic<bool>>(false);
  std::uint32_t rank = 0;
  int device = 0;
  int polls = 0;  ///< polls until the issued calls are in the stream
  bool is_connected = false;
  bool is_closed = false;
  std::atomic<bool> is_in_use = false;
  std::string last_error;
  std::vector<Call> handing;
  void* stream = nullptr;  ///< the stream to which it has given work last
  std::uint64_t collectives = 0;
  std::map<int, std::uint64_t> sends, recvs;
  std::map<const std::byte*, std::size_t> registered;
  void* registering = nullptr;  ///< memory that is being registered: its handle is not written yet
  void** handle_of_it = nullptr;
};

namespace {

std::mutex mutex;
std::vector<std::unique_ptr<ncclComm>> comms;  // includes destroyed ones, to detect their use
int polls = 0;
int failed_rank = -1;
int unseen_rank = -1;  // the rank whose next work fails unseen (FakeNcclFailUnseen); -1: none
std::atomic<int> misuses = 0;
int open_comms = 0;
std::string lines;
std::string last_log;
thread_local std::vector<Call> grouped;
thread_local int depth = 0;

ncclResult_t misuse(const std::string& what) {
  ++misuses;
  std::fprintf(stderr, "fake NCCL: misuse: %s\n", what.c_str());
  return ncclInvalidUsage;
}

/// Marks that a thread uses a communicator, while it lives.
class Use {
 public:
  explicit Use(ncclComm_t comm) : comm_(*comm) {
    if (comm_.is_in_use.exchange(true)) {
      misuse("a communicator is used by two threads at once");
    }
    if (comm_.is_closed) {
      misuse("a communicator is used after its end");
    }
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  ~Use() { comm_.is_in_use = false; }

 private:
  ncclComm& comm_;
};

int version() {
  const char* const text = std::getenv("FAKE_NCCL_VERSION");
  return text == nullptr ? NCCL_VERSION_CODE : std::atoi(text);
}

bool may_share_devices() {
  const char* const text = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return version() >= 23000 && text != nullptr && std::string_view(text) == "1";
}

/// Why the communicator's device cannot use this memory; "" if it can. REQUIRES: the lock is held.
std::string problem_of_memory(const ncclComm& comm, const void* memory, std::size_t bytes) {
  if (bytes == 0) {
    return "";
  }
  if (!fake::is_on_gpu(memory, bytes)) {
    return "memory that is not the GPU's";
  }
  const auto* const first = static_cast<const std::byte*>(memory);
  const auto after = comm.registered.upper_bound(first);
  const bool is_registered =
      after != comm.registered.begin() && first + bytes <= std::prev(after)->first + std::prev(after)->second;
  const char* const strict = std::getenv("FAKE_NCCL_REGISTERED");
  return (comm.registered.empty() && strict == nullptr) || is_registered || fake::is_of_driver(memory)
             ? ""
             : "memory that is not registered";
}

std::string problem_of(const ncclComm& comm, const Call& call) {
  const bool is_floating =
      call.dtype == ncclFloat32 || call.dtype == ncclFloat64 || call.dtype == ncclFloat16 || call.dtype == ncclBfloat16;
  const bool reduces = call.kind == Kind::reduce || call.kind == Kind::all_reduce || call.kind == Kind::reduce_scatter;
  if (call.comm != &comm) {
    return "a group of calls of several communicators";
  }
  if (reduces && is_floating && comm.world->size() > 1 && (call.reduction == ncclMin || call.reduction == ncclMax)) {
    return "a minimum or maximum that drops NaN";
  }
  if (fake::device_of(call.stream) != comm.device) {
    return "a stream of another device";
  }
  const std::string sent = problem_of_memory(comm, call.send, bytes_sent(call, comm.rank, comm.world->size()));
  return sent.empty() ? problem_of_memory(comm, call.recv, bytes_received(call, comm.rank, comm.world->size())) : sent;
}

/// For each other communicator on this one's device, and each of its members: how many calls that concern the member
/// it was given so far. REQUIRES: the lock is held.
std::vector<Description::Order> orders_of(const ncclComm& comm) {
  std::vector<Description::Order> orders;
  for (const auto& other : comms) {
    if (other.get() == &comm || !other->is_connected || other->is_closed || other->device != comm.device ||
        other->world->shares_a_device()) {  // then a device does not identify a member
      continue;
    }
    for (std::uint32_t member = 0; member < other->world->size(); ++member) {
      const auto peer = static_cast<int>(member);
      orders.push_back({.world = other->world->number(),
                        .device = other->world->device_of(member),
                        .given = other->collectives + other->sends[peer] + other->recvs[peer]});
    }
  }
  return orders;
}

/// Gives the issued calls to their stream. REQUIRES: the lock is held.
void hand_over(ncclComm& comm) {
  if (!comm.handing.empty()) {
    comm.stream = comm.handing[0].stream;
    fake::enqueue(comm.stream,
                  std::make_shared<Works>(comm.world, comm.is_aborted, comm.rank, std::move(comm.handing)));
    comm.handing.clear();
  }
}

/// Makes the communicator fail unseen, if a test has requested it (FakeNcclFailUnseen). REQUIRES: the lock is held.
void fail_unseen(ncclComm& comm) {
  if (static_cast<int>(comm.rank) == unseen_rank && comm.stream != nullptr && !fake::is_done(comm.stream)) {
    unseen_rank = -1;
    comm.world->fail("member " + std::to_string(comm.rank) + " fails as it was asked to");
    fake::await(comm.stream);
  }
}

/// Ends the registration of memory, if one is in progress. REQUIRES: the lock is held.
void end_registering(ncclComm& comm) {
  if (comm.registering != nullptr) {
    *comm.handle_of_it = comm.registering;
    comm.registering = nullptr;
  }
}

/// Kills the process if FAKE_NCCL_KILL names this member and launch. REQUIRES: the lock is held.
void die_if_asked(const ncclComm& comm) {
  static std::uint64_t launches = 0;
  const char* const text = std::getenv("FAKE_NCCL_KILL");
  const char* const colon = text == nullptr ? nullptr : std::strchr(text, ':');
  if (colon != nullptr && comm.rank == std::strtoul(text, nullptr, 10) &&
      ++launches == std::strtoull(colon + 1, nullptr, 10)) {
    std::raise(SIGKILL);
  }
}

ncclResult_t submit() {
  if (grouped.empty()) {
    return ncclSuccess;
  }
  std::vector<Call> calls = std::move(grouped);
  grouped.clear();
  ncclComm& comm = *calls[0].comm;
  const Use use(&comm);
  const std::lock_guard lock(mutex);
  if (comm.is_closed || comm.polls > 0 || !comm.is_connected || fake::device() != comm.device) {
    return misuse("a call without its device, or in a communicator that is not ready");
  }
  die_if_asked(comm);
  lines += "rank " + std::to_string(comm.rank) + ":";
  for (Call& call : calls) {
    lines += (&call == calls.data() ? " " : ", ") + text_of(call);
    if (const std::string problem = problem_of(comm, call); !problem.empty()) {
      comm.last_error = problem;
      return misuse(problem + ": " + text_of(call));
    }
    if (call.kind == Kind::send || call.kind == Kind::recv) {
      call.number = ++(call.kind == Kind::send ? comm.sends : comm.recvs)[call.peer];
    } else {
      call.number = ++comm.collectives;
    }
    call.orders = orders_of(comm);
  }
  lines += "\n";
  comm.handing = std::move(calls);
  comm.polls = polls;
  if (comm.polls == 0) {
    hand_over(comm);
  }
  return comm.polls > 0 ? ncclInProgress : ncclSuccess;
}

ncclResult_t add(Call call) {
  grouped.push_back(std::move(call));
  return depth > 0 ? ncclSuccess : submit();
}

/// Closes a communicator. REQUIRES: the lock is held.
void close(ncclComm& comm) {
  *comm.is_aborted = true;
  comm.is_closed = true;
  comm.handing.clear();
  comm.registered.clear();
  --open_comms;
}

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
void fake_nccl_fail_unseen(int rank) {
  const std::lock_guard lock(mutex);
  unseen_rank = rank;
}
int fake_nccl_misuses() { return misuses; }
int fake_nccl_open() {
  const std::lock_guard lock(mutex);
  return open_comms;
}
unsigned long long fake_nccl_registered() {
  const std::lock_guard lock(mutex);
  unsigned long long bytes = 0;
  for (const auto& comm : comms) {
    for (const auto& [begin, size] : comm->registered) {
      bytes += size;
    }
  }
  return bytes;
}

ncclResult_t ncclGetVersion(int* of) {
  *of = version();
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  *id = {};
  const char* const folder = std::getenv("TMPDIR");
  std::random_device random;
  std::snprintf(id->internal, sizeof(id->internal), "%s/fake-nccl-%d-%08x%08x", folder == nullptr ? "/tmp" : folder,
                getpid(), random(), random());
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  const std::lock_guard lock(mutex);
  if (config->blocking != 0 || fake::device() == fake::no_device) {
    return misuse("a communicator that blocks, or without a device");
  }
  *comm = comms.emplace_back(std::make_unique<ncclComm>()).get();
  (*comm)->world = std::make_shared<World>(id.internal, static_cast<std::uint32_t>(size),
                                           static_cast<std::uint32_t>(rank), fake::device());
  (*comm)->rank = static_cast<std::uint32_t>(rank);
  (*comm)->device = fake::device();
  (*comm)->polls = polls;
  ++open_comms;
  return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  const Use use(comm);
  const std::lock_guard lock(mutex);
  *state = ncclSuccess;
  if (static_cast<int>(comm->rank) == failed_rank) {
    *state = ncclRemoteError;
  } else if (comm->world->has_failed()) {
    *state = ncclInternalError;
  } else if (!comm->world->is_complete() || (comm->polls > 0 && --comm->polls > 0)) {
    *state = ncclInProgress;
  } else if (comm->world->shares_a_device_of_a_host() && !may_share_devices()) {
    comm->last_error = "Duplicate GPU detected";
    *state = ncclInvalidUsage;
  } else {
    comm->is_connected = true;
    end_registering(*comm);
    hand_over(*comm);
    fail_unseen(*comm);
  }
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const Use use(comm);
  return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const Use use(comm);
  const std::lock_guard lock(mutex);
  if (!comm->registered.empty()) {
    misuse("a communicator is destroyed, and memory is registered with it");
  }
  close(*comm);
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const Use use(comm);
  const std::lock_guard lock(mutex);
  if (fake::device() != comm->device) {
    misuse("a communicator is aborted without its device");
  }
  close(*comm);
  return ncclSuccess;
}
ncclResult_t ncclCommRegister(ncclComm_t comm, void* memory, size_t bytes, void** handle) {
  const Use use(comm);
  const std::lock_guard lock(mutex);
  if (!fake::is_on_gpu(memory, bytes) || fake::device() != comm->device) {
    return misuse("memory is registered that is not the GPU's");
  }
  if (comm->is_closed || comm->polls > 0) {
    return misuse("memory is registered with a communicator that is not ready");
  }
  comm->registered[static_cast<const std::byte*>(memory)] = bytes;
  comm->registering = memory;
  comm->handle_of_it = handle;
  comm->polls = polls;
  if (comm->polls == 0) {
    end_registering(*comm);
  }
  return comm->polls > 0 ? ncclInProgress : ncclSuccess;
}
ncclResult_t ncclCommDeregister(ncclComm_t comm, void* handle) {
  const Use use(comm);
  const std::lock_guard lock(mutex);
  return comm->registered.erase(static_cast<const std::byte*>(handle)) == 1
             ? ncclSuccess
             : misuse("memory is deregistered that is not registered");
}
const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError    ? "remote process exited or there was a network error"
         : result == ncclInvalidUsage ? "invalid usage (run with NCCL_DEBUG=WARN for details)"
                                      : "an error of NCCL";
}
const char* ncclGetLastError(ncclComm_t comm) {
  const std::lock_guard lock(mutex);
  if (comm == nullptr) {
    return "";
  }
  if (comm->last_error.empty()) {
    comm->last_error = comm->world->has_failed() ? comm->world->failure() : "the last words of NCCL";
  }
  return comm->last_error.c_str();
}
ncclResult_t ncclGroupStart() {
  ++depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() { return --depth > 0 ? ncclSuccess : submit(); }
ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return add({Kind::send, from, nullptr, count, dtype, ncclSum, peer, comm, stream});
}
ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t dtype, int peer, ncclComm_t comm, cudaStream_t stream) {
  return add({Kind::recv, nullptr, to, count, dtype, ncclSum, peer, comm, stream});
}
ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t dtype, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  return add({Kind::broadcast, from, to, count, dtype, ncclSum, root, comm, stream});
}
ncclResult_t ncclReduce(const void* from, void* to, size_t count, ncclDataType_t dtype, ncclRedOp_t reduction, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  return add({Kind::reduce, from, to, count, dtype, reduction, root, comm, stream});
}
ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t dtype, ncclRedOp_t reduction,
                           ncclComm_t comm, cudaStream_t stream) {
  return add({Kind::all_reduce, from, to, count, dtype, reduction, 0, comm, stream});
}
ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t dtype, ncclComm_t comm,
                           cudaStream_t stream) {
  return add({Kind::all_gather, from, to, count, dtype, ncclSum, 0, comm, stream});
}
ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t dtype, ncclRedOp_t reduction,
                               ncclComm_t comm, cudaStream_t stream) {
  return add({Kind::reduce_scatter, from, to, count, dtype, reduction, 0, comm, stream});
}

}  // extern "C"
