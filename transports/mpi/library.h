#pragma once

#include <mpi.h>
#include <shardrun/sdk/transport.hpp>

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

/// What gives MPI more when some of what it has is complete. MPI's lock is held.
class Sequel {
 public:
  Sequel() = default;
  Sequel(const Sequel&) = delete;
  Sequel& operator=(const Sequel&) = delete;
  virtual ~Sequel() = default;
  virtual void advance() noexcept = 0;
};

/// The MPI of this process: initialised once, and finalised when the process ends well. It lives as long as the process
/// does, whatever instances of the plugin come and go.
///
/// Every call of MPI is made under one lock. A thread keeps MPI going while ops are under way and nobody waits for
/// them: most implementations move nothing but inside of calls.
class Library {
 public:
  static Library& instance();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  /// Initialises MPI, which waits for the other ranks. Throws TransportError where its launcher has started another
  /// world than this.
  void start(std::uint32_t rank, std::uint32_t world_size);

  [[nodiscard]] std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }
  /// Of all ranks, for what groups say before they are groups.
  [[nodiscard]] MPI_Comm world() const noexcept { return world_; }
  /// The same on every rank; implementations differ.
  [[nodiscard]] int largest_tag() const noexcept { return largest_tag_; }

  /// An op under way has memory that MPI still knows, and which is about to go. MPI takes no collective back: from now
  /// on it is not called any more, and every group of this process fails.
  void give_up(const std::string& why) noexcept;
  [[nodiscard]] bool has_given_up() const noexcept { return given_up_.load(std::memory_order_acquire); }
  /// Throws TransportError{SR_ABORTED} where it has.
  void require_going();

  /// With the lock held, by every member. Throws TransportError where MPI has no more communicators.
  [[nodiscard]] static MPI_Comm duplicate(MPI_Comm comm);
  /// With the lock held, and where MPI is still used. What is under way in it goes on to its end; implementations wait
  /// for nobody.
  void free_comm(MPI_Comm& comm) noexcept;

  // With the lock held. `advance` is called again and again while ops are under way, whoever waits for which.
  void add(Sequel& sequel) { sequels_.push_back(&sequel); }
  void remove(const Sequel& sequel) noexcept { std::erase(sequels_, &sequel); }
  void advance() noexcept;
  /// With the lock held: memory that MPI may write to as long as this process lives.
  void keep(std::shared_ptr<void> memory) { kept_.push_back(std::move(memory)); }

  // Around an op that is under way, and around a wait, in which the waiting thread keeps MPI going.
  void op_begins();
  void op_ends() noexcept;
  void wait_begins() noexcept { ++waiting_; }
  void wait_ends() noexcept { --waiting_; }

  /// What a call of MPI returned. Throws TransportError{SR_INTERNAL} with MPI's own words.
  static void check(int code, const char* call);

 private:
  Library() = default;

  void initialize(std::uint32_t rank, std::uint32_t world_size);
  void keep_going();
  static void at_exit(int status, void* self);
  void end(bool well) noexcept;

  std::mutex mutex_;  ///< of MPI
  bool started_ = false;
  MPI_Comm world_ = MPI_COMM_NULL;
  MPI_Comm self_ = MPI_COMM_NULL;
  int largest_tag_ = 32767;  ///< which every MPI has

  std::vector<Sequel*> sequels_;
  std::vector<std::shared_ptr<void>> kept_;

  std::mutex state_mutex_;  ///< of the next three
  std::string given_up_why_;
  bool stopping_ = false;
  std::condition_variable changed_;
  std::atomic<bool> given_up_ = false;
  std::atomic<int> under_way_ = 0;
  std::atomic<int> waiting_ = 0;
  std::atomic<bool> is_asleep_ = false;  ///< the thread, until an op begins
  std::thread thread_;
};

}  // namespace shardrun::mpi_transport
