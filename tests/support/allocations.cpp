#include "tests/support/allocations.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::uint64_t> count = 0;
thread_local std::uint64_t own_count = 0;

}  // namespace

// The array forms come down to these. A sanitizer brings each form itself, so all that can meet are replaced together.

void* operator new(std::size_t bytes, const std::nothrow_t& /*unused*/) noexcept {
  const std::uint64_t counted = shardrun::test::Uncounted::depth() == 0 ? 1 : 0;
  count.fetch_add(counted, std::memory_order_relaxed);
  own_count += counted;
  return std::malloc(bytes == 0 ? 1 : bytes);
}

void* operator new(std::size_t bytes) {
  void* memory = ::operator new(bytes, std::nothrow);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory;
}

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*bytes*/) noexcept { std::free(memory); }

namespace shardrun::test {

std::uint64_t allocations() noexcept { return count.load(std::memory_order_relaxed); }
std::uint64_t own_allocations() noexcept { return own_count; }

}  // namespace shardrun::test
