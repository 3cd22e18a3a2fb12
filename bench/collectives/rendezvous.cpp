#include "bench/collectives/rendezvous.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <iterator>
#include <thread>
#include <utility>

#include "core/base/error.h"

namespace shardrun::bench {
namespace {

void* map_shared(const std::string& path, int flags, std::uint64_t bytes) {
  const int descriptor = open(path.c_str(), flags | O_RDWR | O_CLOEXEC, 0600);
  const bool is_sized =
      descriptor >= 0 && ((flags & O_CREAT) == 0 || ftruncate(descriptor, static_cast<off_t>(bytes)) == 0);
  void* const mapped = is_sized ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0) : MAP_FAILED;
  const int error = errno;
  if (descriptor >= 0) {
    close(descriptor);
  }
  if (mapped == MAP_FAILED) {
    throw Error(ErrorCode::io, fmt::format("{} cannot be mapped: {}", path, std::strerror(error)));
  }
  return mapped;
}

/// The name of a key's file: keys contain slashes.
std::string file_name(std::string key) {
  std::replace(key.begin(), key.end(), '/', '_');
  return "key." + key;
}

}  // namespace

Rendezvous::Rendezvous(std::filesystem::path folder, std::uint32_t rank, std::uint32_t size)
    : folder_(std::move(folder)), rank_(rank), size_(size) {
  if (size > most_ranks) {
    throw Error(ErrorCode::usage, fmt::format("{} ranks were asked for; at most {} can be", size, most_ranks));
  }
  // Whichever rank opens the file first, it begins with zeros.
  board_ = static_cast<Board*>(map_shared(folder_ / "board", O_CREAT, sizeof(Board)));
}

Rendezvous::~Rendezvous() { munmap(board_, sizeof(Board)); }

void Rendezvous::store_set(const std::string& key, std::string value) {
  const std::filesystem::path path = folder_ / file_name(key);
  const std::filesystem::path fresh = path.string() + fmt::format(".{}", rank_);
  {
    std::ofstream file(fresh, std::ios::binary);
    file.write(value.data(), static_cast<std::streamsize>(value.size()));
  }
  std::filesystem::rename(fresh, path);
}

std::string Rendezvous::store_get(const std::string& key, std::int64_t deadline) {
  for (;;) {
    std::ifstream file(folder_ / file_name(key), std::ios::binary);
    if (file) {
      return {std::istreambuf_iterator<char>(file), {}};
    }
    if (plugins::transport_clock() >= deadline) {
      throw Error(ErrorCode::timeout, fmt::format("nobody has set '{}'", key));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void Rendezvous::barrier() noexcept {
  const std::uint32_t round = board_->rounds.load();
  if (board_->arrived.fetch_add(1) + 1 == size_) {
    board_->arrived.store(0);
    board_->rounds.store(round + 1);
    return;
  }
  while (board_->rounds.load() == round) {
    sched_yield();
  }
}

double Rendezvous::greatest(double mine) noexcept {
  board_->slots[rank_].value.store(mine);
  barrier();
  double most = mine;
  for (std::uint32_t r = 0; r < size_; ++r) {
    most = std::max(most, board_->slots[r].value.load());
  }
  barrier();
  return most;
}

Arenas::Arenas(Rendezvous& rendezvous, const device::HostMemory& own) : own_(rendezvous.rank()), bytes_(own.bytes()) {
  rendezvous.store_set(fmt::format("arena/{}", rendezvous.rank()),
                       fmt::format("/proc/{}/fd/{}", getpid(), own.descriptor()));
  for (std::uint32_t r = 0; r < rendezvous.size(); ++r) {
    const std::string path = rendezvous.store_get(fmt::format("arena/{}", r), plugins::transport_clock() + patience_ns);
    mapped_.push_back(r == own_ ? own.data() : static_cast<std::byte*>(map_shared(path, 0, bytes_)));
  }
}

Arenas::~Arenas() {
  for (std::uint32_t r = 0; r < mapped_.size(); ++r) {
    if (r != own_) {
      munmap(mapped_[r], bytes_);
    }
  }
}

}  // namespace shardrun::bench
