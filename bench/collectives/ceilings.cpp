#include <algorithm>
#include <cstring>

#include "bench/collectives/contestant.h"

namespace shardrun::bench {
namespace {

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define SHARDRUN_BENCH_CLONES __attribute__((target_clones("avx2", "default")))
#define SHARDRUN_BENCH_INDEPENDENT _Pragma("GCC ivdep")
#else
#define SHARDRUN_BENCH_CLONES
#define SHARDRUN_BENCH_INDEPENDENT
#endif

SHARDRUN_BENCH_CLONES void add_to_both(float* to, float* also, const float* a, const float* b, std::uint64_t count) {
  // Exact aliases are allowed: element i is read before it is written.
  SHARDRUN_BENCH_INDEPENDENT
  for (std::uint64_t i = 0; i < count; ++i) {
    const float sum = a[i] + b[i];
    to[i] = sum;
    also[i] = sum;
  }
}

SHARDRUN_BENCH_CLONES void add(float* to, const float* a, const float* b, std::uint64_t count) {
  SHARDRUN_BENCH_INDEPENDENT
  for (std::uint64_t i = 0; i < count; ++i) {
    to[i] = a[i] + b[i];
  }
}

class BareReduction final : public Contestant {
 public:
  explicit BareReduction(const Arenas& arenas) : Contestant("bare reduction"), arenas_(arenas) {}

  bool is_ceiling() const noexcept override { return true; }

  Run prepare(const Exercise& e) override {
    if (e.kind != Kind::all_reduce || e.size < 2) {
      return {};
    }
    const std::uint64_t begin = e.count * e.rank / e.size;
    const std::uint64_t count = e.count * (e.rank + 1) / e.size - begin;
    std::vector<float*> sends;
    std::vector<float*> recvs;
    for (std::uint32_t r = 0; r < e.size; ++r) {
      const auto there = [&](float* here) {
        return reinterpret_cast<float*>(arenas_.of(r) + (reinterpret_cast<std::byte*>(here) - arenas_.of(e.rank)));
      };
      sends.push_back(there(e.send) + begin);
      recvs.push_back(there(e.recv) + begin);
    }
    return [=] { reduce(sends, recvs, count); };
  }

 private:
  static void reduce(const std::vector<float*>& sends, const std::vector<float*>& recvs, std::uint64_t count) {
    if (sends.size() == 2) {
      return add_to_both(recvs[0], recvs[1], sends[0], sends[1], count);
    }
    constexpr std::uint64_t tile = 2048;
    float sum[tile];
    for (std::uint64_t done = 0; done < count; done += tile) {
      const std::uint64_t now = std::min(tile, count - done);
      add(sum, sends[0] + done, sends[1] + done, now);
      for (std::size_t r = 2; r < sends.size(); ++r) {
        add(sum, sum, sends[r] + done, now);
      }
      for (float* const to : recvs) {
        std::memcpy(to + done, sum, now * sizeof(float));
      }
    }
  }

  const Arenas& arenas_;
};

class Memcpy final : public Contestant {
 public:
  Memcpy() : Contestant("memcpy") {}

  bool is_ceiling() const noexcept override { return true; }
  Run prepare(const Exercise& e) override {
    if (e.in_place) {
      return {};
    }
    return [e] { std::memcpy(e.recv, e.send, std::min(e.sent(), e.received()) * sizeof(float)); };
  }
};

}  // namespace

std::unique_ptr<Contestant> make_bare_reduction(const Arenas& arenas) {
  return std::make_unique<BareReduction>(arenas);
}
std::unique_ptr<Contestant> make_memcpy() { return std::make_unique<Memcpy>(); }

}  // namespace shardrun::bench
