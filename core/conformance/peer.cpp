#include "core/conformance/peer.h"

#include <fmt/format.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <new>

#include "plugins/loader/transport.h"

namespace shardrun::conformance {
namespace {

constexpr std::size_t store_bytes = std::size_t{4} << 20U;

/// Sizes in bytes at the start of an entry. The key and the value follow them.
struct Sizes {
  std::uint32_t key = 0;
  std::uint32_t value = 0;
};

}  // namespace

struct Store::Shared {
  pthread_mutex_t mutex;               // a robust mutex, because its owner can die
  std::atomic<std::uint32_t> changes;  // a futex on which processes wait
  std::atomic<std::uint32_t> aborted;
  std::uint64_t used;
  char entries[store_bytes - 128];
};

namespace {

/// Holds the mutex. If its previous owner died, the store is consistent anyway, because `used` is updated last.
class StoreLock {
 public:
  explicit StoreLock(pthread_mutex_t& mutex) : mutex_(mutex) {
    if (pthread_mutex_lock(&mutex_) == EOWNERDEAD) {
      pthread_mutex_consistent(&mutex_);
    }
  }
  StoreLock(const StoreLock&) = delete;
  StoreLock& operator=(const StoreLock&) = delete;
  ~StoreLock() { pthread_mutex_unlock(&mutex_); }

 private:
  pthread_mutex_t& mutex_;
};

void wake_all(std::atomic<std::uint32_t>& word) noexcept {
  word.fetch_add(1);
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

/// Waits while `word` has this value. Returns false once the deadline has passed.
bool wait_while(std::atomic<std::uint32_t>& word, std::uint32_t value, std::int64_t deadline) noexcept {
  const timespec until = {.tv_sec = deadline / 1'000'000'000, .tv_nsec = deadline % 1'000'000'000};
  return syscall(SYS_futex, &word, FUTEX_WAIT_BITSET, value, &until, nullptr, FUTEX_BITSET_MATCH_ANY) == 0 ||
         errno != ETIMEDOUT;
}

}  // namespace

Store::Store() : descriptor_(memfd_create("conformance", MFD_CLOEXEC)), shared_(nullptr) {
  if (descriptor_ < 0 || ftruncate(descriptor_, sizeof(Shared)) != 0) {
    throw Error(ErrorCode::io, fmt::format("cannot make a shared store: {}", std::strerror(errno)));
  }
  shared_ = static_cast<Shared*>(mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0));
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&shared_->mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
}

Store::Store(int descriptor)
    : descriptor_(dup(descriptor)),
      shared_(static_cast<Shared*>(mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0))) {}

Store::~Store() {
  munmap(shared_, sizeof(Shared));
  close(descriptor_);
}

void Store::set(std::string_view key, std::string_view value) {
  {
    const StoreLock held(shared_->mutex);
    const std::uint64_t needed = sizeof(Sizes) + key.size() + value.size();
    if (find(key) || shared_->used + needed > sizeof(shared_->entries)) {
      throw Error(ErrorCode::internal, fmt::format("key '{}' is set already, or the store is full", key));
    }
    const Sizes sizes = {static_cast<std::uint32_t>(key.size()), static_cast<std::uint32_t>(value.size())};
    char* at = shared_->entries + shared_->used;
    std::memcpy(at, &sizes, sizeof(sizes));
    std::memcpy(at + sizeof(sizes), key.data(), key.size());
    std::memcpy(at + sizeof(sizes) + key.size(), value.data(), value.size());
    shared_->used += needed;
  }
  wake_all(shared_->changes);
}

std::optional<std::string> Store::find(std::string_view key) const {
  const char* at = shared_->entries;
  const char* end = at + shared_->used;
  while (at != end) {
    Sizes sizes;
    std::memcpy(&sizes, at, sizeof(sizes));
    at += sizeof(sizes);
    if (std::string_view(at, sizes.key) == key) {
      return std::string(at + sizes.key, sizes.value);
    }
    at += sizes.key + sizes.value;
  }
  return std::nullopt;
}

std::optional<std::string> Store::get(std::string_view key, std::int64_t deadline) {
  for (;;) {
    const std::uint32_t seen = shared_->changes.load();
    {
      const StoreLock held(shared_->mutex);
      if (auto found = find(key)) {
        return found;
      }
    }
    if (aborted() || !wait_while(shared_->changes, seen, deadline)) {
      return std::nullopt;
    }
  }
}

void Store::abort() noexcept {
  shared_->aborted.store(1);
  wake_all(shared_->changes);
}

bool Store::aborted() const noexcept { return shared_->aborted.load() != 0; }

std::int64_t after(double seconds) { return plugins::transport_clock() + static_cast<std::int64_t>(seconds * 1e9); }

void Peer::meet(const std::string& place, std::uint32_t n) {
  tell("met at " + place, "");
  for (std::uint32_t other = 0; other < n; ++other) {
    (void)hear("met at " + place, other);
  }
}

void Peer::tell(const std::string& name, const std::string& value) {
  store_.set(fmt::format("{}/{}", name, rank_), value);
}

std::string Peer::hear(const std::string& name, std::uint32_t from) {
  std::optional<std::string> value = store_.get(fmt::format("{}/{}", name, from), after(2 * timeout_s));
  if (!value) {
    throw Failure(store_.aborted() ? other_failed : fmt::format("rank {} did not come to '{}'", from, name));
  }
  return std::move(*value);
}

void Peer::note(std::string text) {
  if (std::ranges::find(notes_, text) == notes_.end()) {
    notes_.push_back(std::move(text));
  }
}

}  // namespace shardrun::conformance
