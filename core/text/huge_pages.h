#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <new>

namespace shardrun::text {

/// An allocator for large tables that are read at random. It asks the system for pages of 2 MiB, which need fewer
/// entries in the processor's TLB. The system may ignore this.
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
