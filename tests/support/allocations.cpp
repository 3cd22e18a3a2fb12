#include "tests/support/allocations.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::uint64_t> count = 0;
thread_local std::uint64_t own_count = 0;

void count_one() noexcept {
  const std::uint64_t counted = shardrun::test::Uncounted::depth() == 0 ? 1 : 0;
  count.fetch_add(counted, std::memory_order_relaxed);
  own_count += counted;
}

}  // namespace

#if defined(SHARDRUN_TSAN)

// With ThreadSanitizer, Clang links its own operator new into a program, so this hook counts allocations instead; it
// also counts malloc. Clang declares the hook in a header; GCC provides only the function.
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*allocated)(const volatile void*, std::size_t),
                                                         void (*freed)(const volatile void*));
[[maybe_unused]] static const int installed = __sanitizer_install_malloc_and_free_hooks(
    [](const volatile void*, std::size_t) { count_one(); }, [](const volatile void*) {});

#else

// The array forms call these. AddressSanitizer defines each form itself, so all forms that may be mixed are replaced.

void* operator new(std::size_t bytes, const std::nothrow_t& /*unused*/) noexcept {
  count_one();
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

#endif

namespace shardrun::test {

std::uint64_t allocations() noexcept { return count.load(std::memory_order_relaxed); }
std::uint64_t own_allocations() noexcept { return own_count; }

}  // namespace shardrun::test
