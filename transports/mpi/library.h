#pragma once

#include <mpi.h>
#include <shardrun/sdk/transport/group.hpp>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace shardrun::mpi_transport {

class SharedComm;

/// The MPI library in this process: initialised once, and finalised when the process ends normally. It lives as long as
/// the process, independent of the plugin's instances.
///
/// A lock is held during every MPI call. Most implementations make progress only inside calls. So a thread calls MPI
/// while ops are in flight and no other thread waits for them.
class Library {
 public:
  static Library& instance();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  /// Initialises MPI, which waits for the other ranks. Later calls do nothing. Throws TransportError if MPI's launcher
  /// did not start this rank, if MPI has another rank or world size, or if MPI fails.
  void start(std::uint32_t rank, std::uint32_t world_size);

  [[nodiscard]] std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }
  /// The communicator of all ranks, for messages before a group has its own.
  [[nodiscard]] MPI_Comm world() const noexcept { return world_; }
  /// The largest tag that MPI allows, the same on every rank. It depends on the implementation.
  [[nodiscard]] int largest_tag() const noexcept { return largest_tag_; }

  /// Call it before memory is freed that MPI still uses. MPI cannot cancel a collective, so from here on MPI is not
  /// called any more, and every group of this process fails.
  void abandon(const std::string& why) noexcept;
  [[nodiscard]] bool is_abandoned() const noexcept { return abandoned_.load(std::memory_order_acquire); }
  /// Throws TransportError{SR_ABORTED} if MPI was abandoned.
  void require_usable();

  /// Duplicates a communicator. REQUIRES: the lock is held, and every member calls it. Throws TransportError if MPI has
  /// no more communicators.
  [[nodiscard]] static MPI_Comm duplicate(MPI_Comm comm);
  /// Frees a communicator, unless MPI is abandoned. Work in flight on it continues. REQUIRES: the lock is held.
  void free_comm(MPI_Comm& comm) noexcept;

  // REQUIRES: the lock is held. While ops are in flight, a waiting thread or the progress thread calls advance().
  void add(SharedComm& comm) { shared_comms_.push_back(&comm); }
  void remove(const SharedComm& comm) noexcept { std::erase(shared_comms_, &comm); }
  void advance() noexcept;
  /// Keeps memory to which MPI may write for as long as this process lives. REQUIRES: the lock is held.
  void keep(std::shared_ptr<void> memory) { kept_.push_back(std::move(memory)); }

  // Call these around an op in flight, and around a wait, in which the waiting thread itself makes MPI progress.
  void op_begins();
  void op_ends() noexcept;
  void wait_begins() noexcept { ++waiting_; }
  void wait_ends() noexcept { --waiting_; }

  /// Checks the result of an MPI call. Throws TransportError{SR_INTERNAL} with MPI's text.
  static void check(int code, const char* call);

 private:
  Library() = default;

  void initialize(std::uint32_t rank, std::uint32_t world_size);
  void run_progress();
  static void at_exit(int status, void* self);
  void end(bool well) noexcept;

  std::mutex mutex_;  ///< held during every call of MPI
  bool started_ = false;
  MPI_Comm world_ = MPI_COMM_NULL;
  MPI_Comm self_ = MPI_COMM_NULL;
  int largest_tag_ = 32767;  ///< the smallest value that the standard allows

  std::vector<SharedComm*> shared_comms_;  ///< those that give MPI more work when earlier work completes
  std::vector<std::shared_ptr<void>> kept_;

  std::mutex state_mutex_;  ///< guards the next two
  std::string abandoned_why_;
  bool stopping_ = false;
  std::condition_variable changed_;
  std::atomic<bool> abandoned_ = false;
  std::atomic<int> in_flight_ = 0;
  std::atomic<int> waiting_ = 0;
  std::atomic<bool> is_asleep_ = false;  ///< the thread sleeps until an op begins
  std::thread thread_;
};

}  // namespace shardrun::mpi_transport
