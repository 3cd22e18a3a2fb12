#include "transports/mpi/library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "transports/mpi/group.h"

namespace shardrun::mpi_transport {
namespace {

using sdk::TransportError;

/// The time between two progress calls if no thread waits: short beside a transfer, long beside a system call.
constexpr std::chrono::microseconds progress_interval{100};
/// Progress calls without an op in flight after which the thread sleeps.
constexpr int max_idle_rounds = 10;
/// MPI_Finalize might never end if peers have failed, so the process ends after this time.
constexpr std::chrono::seconds longest_finalize{30};

const char* variable(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

[[noreturn]] void refuse(const std::string& why) {
  throw TransportError(SR_INVALID, why +
                                       ": start the ranks with MPI's own launcher, as 'mpirun -n 4 shardrun job.ini' "
                                       "or 'srun -n 4 shardrun job.ini', or choose another transport");
}

/// Refuses a rank that MPI's launcher did not start (MPI would make it a world of one) or that has another world size.
void require_launcher(std::uint32_t world_size) {
  bool is_started = false;
  for (const char* const name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    is_started = is_started || variable(name) != nullptr;
  }
  if (!is_started) {
    refuse("this process was not started by MPI's launcher");
  }
  for (const char* const name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    if (const char* const size = variable(name); size != nullptr && size != std::to_string(world_size)) {
      refuse(std::string(name) + " says that there are " + size + " ranks, and the job has " +
             std::to_string(world_size));
    }
  }
}

/// Makes MPI's symbols global. The loader opened this plugin with local symbols, but Open MPI's own plugins need MPI's.
void show_symbols() {
  Dl_info info = {};
  if (dladdr(reinterpret_cast<void*>(&MPI_Init_thread), &info) != 0 && info.dli_fname != nullptr) {
    dlopen(info.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
  }
}

}  // namespace

Library& Library::instance() {
  static Library* const library = new Library;  // never destroyed: threads may use it until the process ends
  return *library;
}

void Library::check(int code, const char* call) {
  if (code == MPI_SUCCESS) {
    return;
  }
  std::array<char, MPI_MAX_ERROR_STRING> text = {};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw TransportError(SR_INTERNAL, std::string(call) + " failed: " + text.data());
}

void Library::start(std::uint32_t rank, std::uint32_t world_size) {
  const auto locked = lock();
  if (!started_) {
    require_launcher(world_size);
    initialize(rank, world_size);
    started_ = true;
  }
}

void Library::initialize(std::uint32_t rank, std::uint32_t world_size) {
  show_symbols();
  int is_initialized = 0;
  check(MPI_Initialized(&is_initialized), "MPI_Initialized");
  int level = MPI_THREAD_SERIALIZED;
  if (is_initialized == 0) {
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level), "MPI_Init_thread");
  }
  if (level < MPI_THREAD_SERIALIZED) {
    throw TransportError(SR_INTERNAL,
                         "this MPI cannot be used by several threads, one at a time: it was built without");
  }
  int own_rank = 0;
  int size = 0;
  check(MPI_Comm_rank(MPI_COMM_WORLD, &own_rank), "MPI_Comm_rank");
  check(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  if (static_cast<std::uint32_t>(size) != world_size || static_cast<std::uint32_t>(own_rank) != rank) {
    refuse("MPI says that this is rank " + std::to_string(own_rank) + " of " + std::to_string(size) +
           ", and the job says rank " + std::to_string(rank) + " of " + std::to_string(world_size) +
           " (under srun, is it the MPI that Slurm knows? try srun --mpi=pmix)");
  }
  void* largest_tag = nullptr;
  int is_told = 0;
  check(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&largest_tag), &is_told), "MPI_Comm_get_attr");
  if (is_told != 0) {
    largest_tag_ = *static_cast<const int*>(largest_tag);
  }
  check(MPI_Comm_dup(MPI_COMM_WORLD, &world_), "MPI_Comm_dup");
  check(MPI_Comm_dup(MPI_COMM_SELF, &self_), "MPI_Comm_dup");
  for (const MPI_Comm comm : {world_, self_, MPI_COMM_WORLD}) {
    check(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run_progress(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (is_initialized == 0) {
    on_exit(at_exit, this);  // last, so that a refused world is not finalised
  }
}

void Library::abandon(const std::string& why) noexcept {
  const std::lock_guard locked(state_mutex_);
  if (!abandoned_.load()) {
    abandoned_why_ = why;
    abandoned_.store(true, std::memory_order_release);
  }
}

void Library::require_usable() {
  if (is_abandoned()) {
    const std::lock_guard locked(state_mutex_);
    throw TransportError(SR_ABORTED, "MPI is not used any more in this process: " + abandoned_why_);
  }
}

MPI_Comm Library::duplicate(MPI_Comm comm) {
  MPI_Comm duplicate = MPI_COMM_NULL;
  try {
    check(MPI_Comm_dup(comm, &duplicate), "MPI_Comm_dup");
  } catch (const TransportError& error) {
    throw TransportError(error.status(), std::string(error.what()) +
                                             ": where this MPI has too few communicators, set [transport.mpi] "
                                             "communicators to less, with which more collectives of a group share one");
  }
  return duplicate;
}

void Library::free_comm(MPI_Comm& comm) noexcept {
  if (comm != MPI_COMM_NULL && !is_abandoned()) {
    MPI_Comm_free(&comm);
  }
}

void Library::advance() noexcept {
  for (SharedComm* const comm : shared_comms_) {
    comm->advance();
  }
}

void Library::op_begins() {
  if (in_flight_++ == 0 && is_asleep_) {
    const std::lock_guard locked(state_mutex_);
    changed_.notify_all();
  }
}

void Library::op_ends() noexcept { --in_flight_; }

/// The progress thread. Waking it takes longer than many ops do, so it sleeps only after a while without ops.
void Library::run_progress() {
  std::unique_lock state(state_mutex_);
  int idle_rounds = 0;
  for (;;) {
    idle_rounds = in_flight_ == 0 ? idle_rounds + 1 : 0;
    if (idle_rounds > max_idle_rounds) {
      is_asleep_ = true;
      changed_.wait(state, [&] { return stopping_ || in_flight_ != 0; });
      is_asleep_ = false;
    }
    if (stopping_) {
      return;
    }
    if (in_flight_ != 0 && waiting_ == 0 && !is_abandoned()) {
      state.unlock();
      {
        const auto locked = lock();
        int found = 0;
        MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, self_, &found, MPI_STATUS_IGNORE);
        advance();
      }
      state.lock();
    }
    changed_.wait_for(state, progress_interval, [&] { return stopping_; });
  }
}

/// Finalises MPI only if the process ends with status 0, because peers of one that fails may never reach MPI_Finalize.
/// MPI must not be finalised while anything is in flight, either.
void Library::at_exit(int status, void* self) {
  auto& library = *static_cast<Library*>(self);
  library.end(status == 0 && !library.is_abandoned() && library.kept_.empty());
}

void Library::end(bool well) noexcept {
  {
    const std::lock_guard locked(state_mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
  if (!well) {
    return;
  }
  std::thread([] {
    std::this_thread::sleep_for(longest_finalize);
    std::fflush(nullptr);
    _exit(0);  // this rank's work is done, whatever delays its peers
  }).detach();
  const auto locked = lock();
  int is_finalized = 0;
  if (MPI_Finalized(&is_finalized) == MPI_SUCCESS && is_finalized == 0) {
    MPI_Finalize();
  }
}

}  // namespace shardrun::mpi_transport
