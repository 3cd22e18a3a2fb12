#include "transports/mpi/group.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>

namespace shardrun::mpi_transport {
namespace {

/// After this time a wait sleeps between tests, because the peer may be another rank on this machine.
constexpr std::chrono::milliseconds busy_time{1};
constexpr std::chrono::microseconds completion_poll_interval{50};
/// The number of tests between two yields or sleeps. A test takes less time than a yield, and many waits are short.
constexpr std::uint32_t tests_per_yield = 8;

}  // namespace

Requests::~Requests() {
  const auto is_open = [](MPI_Request request) { return request != MPI_REQUEST_NULL; };
  if (std::any_of(requests_.begin(), requests_.begin() + static_cast<std::ptrdiff_t>(used_), is_open)) {
    Library::instance().abandon(what_ + " ended before it was complete");
  }
}

MPI_Request& Requests::add(const std::optional<Peer>& peer) {
  if (used_ == requests_.size()) {
    requests_.push_back(MPI_REQUEST_NULL);
    peers_.emplace_back();
    indices_.push_back(0);
  }
  peers_[used_] = peer;
  requests_[used_] = MPI_REQUEST_NULL;
  return requests_[used_++];
}

void Requests::clear() noexcept {
  used_ = 0;
  expects_more_ = false;
}

bool Requests::test() {
  Library& library = Library::instance();
  const auto locked = library.lock();
  library.require_usable();
  library.advance();
  if (expects_more_ || used_ == 0) {
    return !expects_more_;
  }
  int complete = 0;
  Library::check(
      MPI_Testsome(static_cast<int>(used_), requests_.data(), &complete, indices_.data(), MPI_STATUSES_IGNORE),
      what_.c_str());
  return std::all_of(requests_.begin(), requests_.begin() + static_cast<std::ptrdiff_t>(used_),
                     [](MPI_Request request) { return request == MPI_REQUEST_NULL; });
}

bool Requests::wait(const std::function<bool()>& over) {
  Library& library = Library::instance();
  struct Waiting {
    explicit Waiting(Library& of) : library(of) { library.wait_begins(); }
    ~Waiting() { library.wait_ends(); }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;
    Library& library;
  } const waiting(library);
  const auto begin = std::chrono::steady_clock::now();
  std::uint32_t looks = 1;
  while (!test()) {
    if (over()) {
      return false;
    }
    if (looks++ % tests_per_yield != 0) {
      continue;
    }
    if (std::chrono::steady_clock::now() - begin < busy_time) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(completion_poll_interval);
    }
  }
  return true;
}

sdk::AwaitedRanks Requests::awaited() const {
  const auto locked = Library::instance().lock();
  sdk::AwaitedRanks awaited;
  for (std::size_t i = 0; i < used_; ++i) {
    if (requests_[i] != MPI_REQUEST_NULL && peers_[i] && awaited.names.find(peers_[i]->name) == std::string::npos) {
      awaited.add(peers_[i]->name, peers_[i]->rank);
    }
  }
  return awaited;
}

}  // namespace shardrun::mpi_transport
