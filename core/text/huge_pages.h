#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <new>

namespace shardrun::text {

/// Allocates large tables that are read at random in pages of 2 MiB, where the system has them for programs that ask:
/// the processor then finds their addresses without looking through tables of pages.
template <class T>
struct HugePages {
  using value_type = T;

  HugePages() = default;
  template <class U>
  explicit HugePages(const HugePages<U>& /*other*/) noexcept {}

  [[nodiscard]] T* allocate(std::size_t count) {
    constexpr std::size_t page = std::size_t{1} << 21U;
    const std::size_t bytes = count * sizeof(T);
    if (bytes < page) {
      return static_cast<T*>(::operator new(bytes, std::align_val_t(alignof(T))));
    }
    const std::size_t whole = (bytes + page - 1) / page * page;
    void* const memory = ::operator new(whole, std::align_val_t(page));
    static_cast<void>(::madvise(memory, whole, MADV_HUGEPAGE));
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, std::size_t count) noexcept {
    constexpr std::size_t page = std::size_t{1} << 21U;
    ::operator delete(memory, std::align_val_t(count * sizeof(T) < page ? alignof(T) : page));
  }

  template <class U>
  bool operator==(const HugePages<U>& /*other*/) const noexcept {
    return true;
  }
};

}  // namespace shardrun::text
