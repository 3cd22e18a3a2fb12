#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/device/host_memory.h"
#include "plugins/loader/transport.h"

namespace shardrun::bench {

constexpr std::int64_t patience_ns = 120'000'000'000;

/// The meeting place of a run's processes: files in one folder. It works however the processes were started.
class Rendezvous final : public plugins::TransportHost {
 public:
  static constexpr std::uint32_t most_ranks = 64;

  Rendezvous(std::filesystem::path folder, std::uint32_t rank, std::uint32_t size);
  ~Rendezvous() override;

  [[nodiscard]] std::uint32_t rank() const noexcept { return rank_; }
  [[nodiscard]] std::uint32_t size() const noexcept { return size_; }

  [[nodiscard]] bool aborted() const noexcept override { return false; }
  void store_set(const std::string& key, std::string value) override;
  [[nodiscard]] std::string store_get(const std::string& key, std::int64_t deadline) override;

  /// Waits until all ranks have called it.
  void barrier() noexcept;
  /// Returns the largest value that any rank passes, on all ranks.
  [[nodiscard]] double greatest(double mine) noexcept;

 private:
  struct alignas(64) Slot {
    std::atomic<double> value;
  };
  struct Board {
    alignas(64) std::atomic<std::uint32_t> arrived;
    alignas(64) std::atomic<std::uint32_t> rounds;
    Slot slots[most_ranks];
  };

  std::filesystem::path folder_;
  std::uint32_t rank_;
  std::uint32_t size_;
  Board* board_ = nullptr;
};

/// The arenas of all ranks, this one's included, mapped into this process.
class Arenas {
 public:
  Arenas(Rendezvous& rendezvous, const device::HostMemory& own);
  Arenas(const Arenas&) = delete;
  Arenas& operator=(const Arenas&) = delete;
  ~Arenas();

  [[nodiscard]] std::byte* of(std::uint32_t rank) const noexcept { return mapped_[rank]; }

 private:
  std::uint32_t own_;
  std::uint64_t bytes_;
  std::vector<std::byte*> mapped_;
};

}  // namespace shardrun::bench
